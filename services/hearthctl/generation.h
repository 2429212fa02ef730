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
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/progress_line.h"
#include "services/hearthctl/prompt_flags.h"

namespace hearth {

class CommandFlags;

// The caller's choices beside the prompt.
class GenerationFlags {
 public:
  void Declare(CommandFlags* command, uint32_t default_max_new_tokens);
  // Only those that say where it ends.
  void DeclareEnd(CommandFlags* command, uint32_t default_max_new_tokens);
  // kInvalidArgument names the flag whose text is not UTF-8.
  absl::Status Check() const;
  // Sets all but the prompt.
  void Apply(v1::GenerateRequest* request) const;
  // The part that DeclareEnd declares.
  void ApplyEnd(v1::GenerateRequest* request) const;

 private:
  void DeclareRules(CommandFlags* command);
  void ApplyRules(v1::SamplingParams* sampling) const;
  uint32_t max_new_tokens_ = 0;
  bool server_defaults_ = false;
  std::optional<float> temperature_, top_p_;
  std::optional<uint32_t> top_k_;
  std::optional<uint64_t> seed_;
  float min_p_ = 0, repetition_penalty_ = 1, presence_penalty_ = 0, frequency_penalty_ = 0;
  std::vector<std::string> logit_bias_;  // ID=BIAS
  std::vector<uint32_t> stop_token_ids_, bad_token_ids_;
  uint32_t min_tokens_ = 0;
  int logprobs_ = -1;
  std::vector<std::string> stop_;
  bool ignore_eos_ = false;
  bool hash_logits_ = false;
  std::string adapter_;
  v1::CacheMode cache_ = v1::CACHE_MODE_DEFAULT;
  std::string kv_cache_, kv_quantization_;
  int speculate_ = -1;
  v1::Durability durability_ = v1::DURABILITY_DEFAULT;
  HintFlags hint_;
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

  Json ToJson() const;  // fields are part of the API
};

struct GenerationEvents {
  std::function<void(const v1::Started&)> started;
  std::function<bool(const v1::GeneratedToken&)> token;  // false: the call is cancelled
};

// Shows on `progress`, and asks for it where that is seen; null: nothing.
GenerationResult Generate(v1::Inference::Stub* stub, v1::GenerateRequest request,
                          grpc::ClientContext* context, const GenerationEvents& events,
                          ProgressLine* progress = nullptr);

// "length", "eos" or "stop".
std::string FinishReasonText(v1::FinishReason reason);

// "2048 of 2112 tokens from disk, first token after 61.2 ms".
std::string CacheSentence(const GenerationResult& generation);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_GENERATION_H_
