// GenerateCall: one Generate stream: sends the engine's events to the caller.
//
// Thread safety and ownership: request_call.h; generate_run.h, whose order of messages is kept.
// Invariant: messages of at most kMaxWaitingBytes wait for a caller who does not read: one more
// token ends the call with kResourceExhausted.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/generate_run.h"
#include "services/inference/calls/request_call.h"
#include "worker/engine/engine.h"

namespace hearth {

class GenerateCall final : public RequestCall, public GenerateSink {
 public:
  using RequestCall::RequestCall;

  // To be set while the request is made.
  GenerateOptions* options() { return &options_; }

 private:
  absl::StatusOr<std::shared_ptr<EngineRequestHandle>> Submit(EngineRequest request) override;
  void OnStarted(const StartedInfo& info) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool OnMessage(const v1::GenerateResponse& message) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnEnd(const absl::Status& status) override { End(status); }

  GenerateOptions options_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_
