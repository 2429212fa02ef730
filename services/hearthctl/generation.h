// Makes one Generate call, from request to result; used by generate and chat.
//
// Thread safety: none; another thread may cancel the context during the call.
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

// Flags for all fields of a Generate request except the prompt.
class GenerationFlags {
 public:
  void Declare(CLI::App* command, uint32_t default_max_new_tokens);
  // Declares only the flags that limit the answer's length.
  void DeclareEnd(CLI::App* command, uint32_t default_max_new_tokens);
  // Sets the fields of all given flags.
  void Apply(v1::GenerateRequest* request) const;

 private:
  void DeclareRules(CLI::App* command);

  v1::GenerateRequest request_;
  KeepHint hint_;
};

// One of several answers to a prompt.
struct GeneratedSample {
  std::vector<uint32_t> token_ids;
  std::string text;
  std::vector<v1::TokenLogprob> logprobs;  // one per token id, if requested
};

struct GenerationResult {
  v1::Started started;
  v1::Finished finished;
  std::optional<v1::Published> published;
  std::string request_id;                       // the id in the logs of worker and store
  std::vector<GeneratedSample> samples = {{}};  // at least one
  double ttft_ms = 0;   // from the start of the RPC to the first token, by this process's clock
  double total_ms = 0;  // from the start of the RPC to the end of the answer
  grpc::Status status;

  // The fields are part of the public interface. Each single-valued field of Started and Finished
  // is included, so a new field of these messages appears here.
  Json ToJson() const;
};

struct GenerationEvents {
  std::function<void(const v1::Started&)> started;
  std::function<bool(const v1::GeneratedToken&)> token;  // return false to cancel the call
};

// Shows progress of the prompt on `progress`, if it is visible; null: no progress.
GenerationResult Generate(v1::Inference::Stub* stub, v1::GenerateRequest request,
                          grpc::ClientContext* context, const GenerationEvents& events,
                          ProgressLine* progress = nullptr);

// Returns "2048 of 2112 prompt tokens cached (disk), first token after 61.2 ms".
std::string CacheSentence(const GenerationResult& generation);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_GENERATION_H_
