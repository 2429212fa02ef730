// GenerateRun: submits a request to the engine and turns its events into messages of the API.
//
// Thread safety: the events come from the engine's threads, never under a lock, in this order:
// started, progress*, token*, finished, published. Ownership: the engine keeps the sink
// until the last event: a publish may end after the call did. The engine need not
// outlive the run, the tokenizer must.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_RUN_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_RUN_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/progress_pace.h"
#include "services/inference/calls/recent_answers.h"
#include "worker/engine/engine.h"
#include "worker/text/tokenizer.h"

namespace hearth {

// Of messages that wait for a caller who does not read: about 40,000 tokens, or 10,000 with 20
// logprobs each.
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

// Takes what comes of a request.
class GenerateSink {
 public:
  virtual ~GenerateSink() = default;
  virtual void OnStarted(const StartedInfo&) {}  // before its message
  // False: a token's sample ends there.
  virtual bool OnMessage(const v1::GenerateResponse& message) = 0;
  virtual void OnEnd(const absl::Status& status) = 0;  // the last; an error may come at any time
};

// The handle of the request, or the engine's refusal, after which there are no events.
absl::StatusOr<std::shared_ptr<EngineRequestHandle>> RunGenerate(
    Engine* engine, EngineRequest request, GenerateOptions options,
    std::shared_ptr<GenerateSink> sink);

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_RUN_H_
