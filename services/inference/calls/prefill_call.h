// PrefillCall: one Prefill call, answered when its prefix was published, or could not be.
//
// Thread safety and ownership: as GenerateCall's.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_PREFILL_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_PREFILL_CALL_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/progress_pace.h"
#include "services/inference/calls/prompt_work.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/calls/stream_call.h"
#include "worker/engine/engine.h"

namespace hearth {

class PrefillCall final : public StreamCall {
 public:
  using StreamCall::StreamCall;

  // As GenerateCall::Start. `make` sets the pause between messages with progress, if it wants them.
  using Make = std::function<absl::StatusOr<EngineRequest>(absl::Duration* progress_pause)>;
  void Start(FairPool* pool, const std::string& tenant, uint64_t bytes, Make make, Engine* engine);

 private:
  void OnGone() override;
  EngineCallbacks Callbacks();
  void Submit(Engine* engine, EngineRequest request);
  void Prepared(Engine* engine, absl::StatusOr<EngineRequest> prepared) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnStarted(const StartedInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnProgress(uint32_t ready_tokens) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnPublished(const PublishOutcome& outcome) ABSL_LOCKS_EXCLUDED(mutex_);

  const absl::Time start_ = absl::Now();
  absl::Duration progress_pause_ = absl::InfiniteDuration();  // set while the prompt is prepared
  std::optional<ProgressPace> pace_;                          // of the engine's thread

  std::shared_ptr<EngineRequestHandle> handle_ ABSL_GUARDED_BY(mutex_);
  v1::PrefillResponse answer_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_PREFILL_CALL_H_
