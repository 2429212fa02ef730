// GenerateCall: one Generate stream: sends the engine's events to the caller.
//
// Thread safety: stream_call.h; generate_run.h, whose order of messages is kept. Ownership: shared
// by gRPC, until OnDone, and by the events of its run.
// Invariants: (1) a cancelled or expired call cancels its request at once, so that its place is
// free within a step; (2) messages of at most kMaxWaitingBytes wait for a caller who does not read:
// one more token ends the call with kResourceExhausted.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/generate_run.h"
#include "services/inference/calls/prompt_work.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/calls/stream_call.h"
#include "worker/engine/engine.h"

namespace hearth {

class GenerateCall final : public StreamCall {
 public:
  using StreamCall::StreamCall;

  // Makes the request and its options from a message of `bytes`, on `pool`, then submits and
  // follows it, or ends the call with the refusal. `make` may use the call, which does not end
  // before it returns.
  using Make = std::function<absl::StatusOr<EngineRequest>(GenerateOptions* options)>;
  void Start(FairPool* pool, const std::string& tenant, uint64_t bytes, Make make, Engine* engine);

 private:
  void OnGone() override;
  void Submit(Engine* engine, EngineRequest request);
  void Prepared(Engine* engine, absl::StatusOr<EngineRequest> prepared) ABSL_LOCKS_EXCLUDED(mutex_);
  void Note(const StartedInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Send(const v1::GenerateResponse& message) ABSL_LOCKS_EXCLUDED(mutex_);

  GenerateOptions options_;  // set while the prompt is prepared

  std::shared_ptr<EngineRequestHandle> handle_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_
