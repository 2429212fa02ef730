// AskPlan: makes the prompts and requests of a checked AskRequest.
//
// Thread safety: const once made. Ownership: a value.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_ASK_PLAN_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_ASK_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/generate_run.h"
#include "worker/engine/engine.h"
#include "worker/text/prompt.h"

namespace hearth {

inline constexpr int kMaxQuestions = 1024;
inline constexpr size_t kMaxQuestionIdBytes = 256;
// As many as the engine's queue has places by default; a quarter of the sequences that run.
inline constexpr uint32_t kMaxParallelQuestions = 64, kParallelQuestions = 4;

// kInvalidArgument names the field and the limit.
absl::Status CheckAsk(const v1::AskRequest& request);

struct AskPlan {
  v1::AskRequest request;   // REQUIRES: CheckAsk is OK
  EngineRequest each;       // without a prompt
  GenerateOptions options;  // of each

  uint32_t questions() const { return static_cast<uint32_t>(request.questions_size()); }
  uint32_t parallel() const {
    return request.parallel() == 0 ? kParallelQuestions : request.parallel();
  }
  // The context with a question, and a breakpoint between them. kInvalidArgument where the question
  // is of another kind than the context.
  absl::StatusOr<v1::PromptInput> PromptOf(uint32_t question) const;
  // The bytes that the prompt of a question keeps alive while it is made.
  uint64_t BytesOf(uint32_t question) const;

  // Whether the context is computed ahead of the questions.
  bool keeps_context() const {
    return each.cache == CacheMode::kDefault || each.cache == CacheMode::kWrite;
  }
  // A prefill of the tokens of `prompt` that all questions have in common, which may be none.
  EngineRequest ContextRequest(const Prompt& prompt) const;
  EngineRequest QuestionRequest(Prompt prompt) const;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_ASK_PLAN_H_
