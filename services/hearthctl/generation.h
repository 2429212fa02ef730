// Makes one Generate call, from request to result, for generate and chat.
//
// Thread safety: none; the context may be cancelled from another thread meanwhile.
// Ownership: borrows the stub and the context.
#ifndef HEARTH_SERVICES_HEARTHCTL_GENERATION_H_
#define HEARTH_SERVICES_HEARTHCTL_GENERATION_H_

#include <grpcpp/client_context.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/inference.grpc.pb.h"
#include "proto/kv_layout.h"
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/progress_line.h"
#include "services/hearthctl/prompt_flags.h"

namespace CLI {
class App;
}  // namespace CLI

namespace hearth {

// The caller's choices beside the prompt, which flags write into a request.
class GenerationFlags {
 public:
  void Declare(CLI::App* command, uint32_t default_max_new_tokens);
  // Only those that say where it ends.
  void DeclareEnd(CLI::App* command, uint32_t default_max_new_tokens);
  // Sets all that was given.
  void Apply(v1::GenerateRequest* request) const;

 private:
  void DeclareRules(CLI::App* command);

  v1::GenerateRequest request_;
  KeepHint hint_;
};

// One answer of several to a prompt.
struct GeneratedSample {
  std::vector<uint32_t> token_ids;
  std::string text;
  std::vector<v1::TokenLogprob> logprobs;  // of token_ids, where they were asked for
};

struct GenerationResult {
  v1::Started started;
  v1::Finished finished;
  std::optional<v1::Published> published;
  std::string request_id;                       // as the logs of worker and store have it
  std::vector<GeneratedSample> samples = {{}};  // at least one
  double ttft_ms = 0;   // from the RPC's start to the first token, by this process's clock
  double total_ms = 0;  // to the end of the answer
  grpc::Status status;

  // Its fields are part of the API, and so is each field with one value of Started and Finished: a
  // new one appears here.
  Json ToJson() const;
};

struct GenerationEvents {
  std::function<void(const v1::Started&)> started;
  std::function<bool(const v1::GeneratedToken&)> token;  // false: the call is cancelled
};

// Shows on `progress`, and asks for it where that is seen; null: nothing.
GenerationResult Generate(v1::Inference::Stub* stub, v1::GenerateRequest request,
                          grpc::ClientContext* context, const GenerationEvents& events,
                          ProgressLine* progress = nullptr);

// "2048 of 2112 tokens from disk, first token after 61.2 ms".
std::string CacheSentence(const GenerationResult& generation);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_GENERATION_H_
