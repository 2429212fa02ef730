// GenerateCall: one Generate stream: turns the engine's events into messages to the caller.
//
// Thread safety and ownership: request_call.h; the engine keeps the call until the last event, as a
// publish may end after the call did. The events come from the engine's threads, never under a
// lock, in this order: started, progress*, token*, finished, published.
// Invariant: messages of at most kMaxWaitingBytes wait for a caller who does not read: one more
// token ends the call with kResourceExhausted.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/recent_answers.h"
#include "services/inference/calls/request_call.h"
#include "worker/engine/engine.h"
#include "worker/text/text_stream.h"
#include "worker/text/tokenizer.h"

namespace hearth {

// About 40,000 tokens, or 10,000 with 20 logprobs each.
inline constexpr size_t kMaxWaitingBytes = size_t{4} << 20;

struct GenerateOptions {
  SamplingParams sampling;
  const Tokenizer* tokenizer = nullptr;  // null: tokens without text
  std::vector<std::string> stop;         // validated
  bool wait_published = false;
  absl::Duration progress_pause = absl::InfiniteDuration();  // between messages with progress
  bool writes = true;  // the request may publish, so the engine reports an outcome
  std::function<void(const FinishedInfo&)> on_finished;  // for metrics; may be null
  std::shared_ptr<RecentAnswer> recent;                  // gets the first answer's tokens; or null
};

class GenerateCall final : public RequestCall {
 public:
  using RequestCall::RequestCall;

  // To be set while the request is made.
  GenerateOptions* options() { return &options_; }

 private:
  absl::StatusOr<std::shared_ptr<EngineRequestHandle>> Submit(EngineRequest request) override;
  void OnStarted(const StartedInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnProgress(uint32_t ready_tokens) ABSL_LOCKS_EXCLUDED(mutex_);
  // False: the token's sample ends there.
  bool OnToken(const SampledToken& token) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFinished(const FinishedInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnPublished(const PublishOutcome& outcome) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Send(const v1::GenerateResponse& message) ABSL_LOCKS_EXCLUDED(mutex_);

  GenerateOptions options_;
  // Of the events alone, from Submit on.
  uint32_t prompt_tokens_ = 0;
  bool together_ = false;  // all tokens come at the end, in one message:
  v1::GenerateResponse answer_;
  std::optional<ProgressPace> pace_;
  std::vector<std::unique_ptr<TextStream>> texts_;  // of each sample; none without a tokenizer
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_
