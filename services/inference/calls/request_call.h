// RequestCall: a stream that follows one request of the engine, from its message to its end.
//
// Thread safety: stream_call.h. Ownership: shared by gRPC, until OnDone, and by the request's
// callbacks.
// Invariant: a cancelled or expired call cancels its request at once, so that its place is free
// within a step.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_REQUEST_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_REQUEST_CALL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "services/inference/calls/prompt_work.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/calls/stream_call.h"
#include "worker/engine/engine.h"

namespace hearth {

class RequestCall : public StreamCall {
 public:
  using StreamCall::StreamCall;

 protected:
  // Makes the request from a message of `bytes`, on `pool`, then submits it and keeps its handle,
  // or ends the call with the refusal. The call does not end before `make` returns.
  void Follow(FairPool* pool, const std::string& tenant, uint64_t bytes, MakeRequest make,
              Engine* engine) ABSL_LOCKS_EXCLUDED(mutex_);
  // Hands the request, with what is to be called of it, to the engine.
  virtual absl::StatusOr<std::shared_ptr<EngineRequestHandle>> Submit(Engine* engine,
                                                                      EngineRequest request) = 0;
  // Submits a request, the first or one that follows it, and keeps its handle.
  void Begin(Engine* engine, EngineRequest request) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnGone() final;

 private:
  void Prepared(Engine* engine, absl::StatusOr<EngineRequest> prepared) ABSL_LOCKS_EXCLUDED(mutex_);

  std::shared_ptr<EngineRequestHandle> handle_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_REQUEST_CALL_H_
