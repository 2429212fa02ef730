// PrefillCall: one Prefill call, answered when its prefix was published, or could not be. A
// boundary that the store lacks below a restored one is computed by a request of its own, which
// ends there; where that fails, the answer's note says so of what is left.
//
// Thread safety and ownership: request_call.h.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_PREFILL_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_PREFILL_CALL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/request_call.h"
#include "worker/engine/engine.h"

namespace hearth {

class PrefillCall final : public RequestCall {
 public:
  using RequestCall::RequestCall;

  // Between messages with progress. To be set while the request is made, if they are wanted.
  absl::Duration* progress_pause() { return &progress_pause_; }

 private:
  EngineCallbacks Callbacks();
  absl::StatusOr<std::shared_ptr<EngineRequestHandle>> Submit(EngineRequest request) override;
  void OnStarted(const StartedInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnProgress(uint32_t ready_tokens) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnError(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnPublished(const PublishOutcome& outcome) ABSL_LOCKS_EXCLUDED(mutex_);
  void Answer() ABSL_LOCKS_EXCLUDED(mutex_);
  void AddNote(absl::string_view note) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is left to compute; false: nothing.
  bool TakeNext(const PublishOutcome& outcome, EngineRequest* next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const absl::Time start_ = absl::Now();
  absl::Duration progress_pause_ = absl::InfiniteDuration();
  std::optional<ProgressPace> pace_;  // of the engine's thread

  std::optional<EngineRequest> first_;  // set before anything is called back
  v1::PrefillResponse answer_ ABSL_GUARDED_BY(mutex_);
  PublishOutcome published_ ABSL_GUARDED_BY(mutex_);       // by all requests so far
  std::vector<uint32_t> missing_ ABSL_GUARDED_BY(mutex_);  // descending; the last is computed next
  uint32_t computing_ ABSL_GUARDED_BY(mutex_) = 0;         // the one that is
  bool is_first_ ABSL_GUARDED_BY(mutex_) = true;
  uint32_t most_ready_ ABSL_GUARDED_BY(mutex_) = 0;  // tokens, of progress
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_PREFILL_CALL_H_
