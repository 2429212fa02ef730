// Makes one Generate call, from the request to the result. Used by the commands generate and chat.
//
// Thread safety: none, but another thread may cancel the context during the call. Ownership:
// borrows the stub and the context.
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

// The flags for all fields of a Generate request except the prompt.
class GenerationFlags {
 public:
  void Declare(CLI::App* command, uint32_t default_max_new_tokens);
  // Declares only the flags that limit the length of the answer.
  void DeclareEnd(CLI::App* command, uint32_t default_max_new_tokens);
  // Copies the values of the given flags into the request.
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
  // one entry per token id, if log probabilities were requested
  std::vector<v1::TokenLogprob> logprobs;
};

struct GenerationResult {
  v1::Started started;
  v1::Finished finished;
  std::optional<v1::Published> published;
  std::string request_id;  // id of this request in the logs of the worker and the store
  std::string trace_id;    // trace id in the variable TRACEPARENT; empty: not set
  std::vector<GeneratedSample> samples = {{}};  // the answers; at least one
  // milliseconds from the start of the RPC to the first token, measured by this process
  double ttft_ms = 0;
  double total_ms = 0;  // milliseconds from the start of the RPC to the end of the answer
  grpc::Status status;

  // Returns the result as JSON. The names of its fields are part of the public interface. Every
  // field of Started and Finished that is not a list or a message is included, so a new field of
  // these messages appears too.
  Json ToJson() const;
};

struct GenerationEvents {
  std::function<void(const v1::Started&)> started;
  // called for each message with tokens; returns false to cancel the call
  std::function<bool(const v1::GeneratedToken&)> token;
};

// Makes the call and waits for its end. Shows the progress of the prompt on `progress`, unless it
// is null or the console has no terminal.
GenerationResult Generate(v1::Inference::Stub* stub, v1::GenerateRequest request,
                          grpc::ClientContext* context, const GenerationEvents& events,
                          ProgressLine* progress = nullptr);

// Returns a sentence such as "2048 of 2112 prompt tokens cached (disk), first token after 61.2 ms".
std::string CacheSentence(const GenerationResult& generation);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_GENERATION_H_
