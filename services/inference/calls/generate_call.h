// GenerateCall: one Generate stream: sends the engine's events to the caller.
//
// Thread safety and ownership: request_call.h; generate_run.h, whose order of messages is kept.
// Invariant: messages of at most kMaxWaitingBytes wait for a caller who does not read: one more
// token ends the call with kResourceExhausted.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/generate_run.h"
#include "services/inference/calls/request_call.h"
#include "services/serving/calls/fair_pool.h"
#include "worker/engine/engine.h"

namespace hearth {

class GenerateCall final : public RequestCall {
 public:
  using RequestCall::RequestCall;

  // Makes the request and its options from a message of `bytes`, on `pool`, then submits and
  // follows it, or ends the call with the refusal. `make` may use the call, which does not end
  // before it returns.
  using Make = std::function<absl::StatusOr<EngineRequest>(GenerateOptions* options)>;
  void Start(FairPool* pool, const std::string& tenant, uint64_t bytes, Make make, Engine* engine);

 private:
  absl::StatusOr<std::shared_ptr<EngineRequestHandle>> Submit(Engine* engine,
                                                              EngineRequest request) override;
  void Note(const StartedInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Send(const v1::GenerateResponse& message) ABSL_LOCKS_EXCLUDED(mutex_);

  GenerateOptions options_;  // set while the prompt is prepared
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_
