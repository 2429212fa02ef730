// SaveStateCall: one SaveState stream: has the engine make the snapshot of an inference, and sends
// it behind the state's header.
//
// Thread safety and ownership: request_call.h; the service is used only while the call is held.
// Invariants: (1) the file is made once its room is taken, and both are gone before the caller
// learns of the end; (2) one message is made at a time, when the caller has taken the one before.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_SAVE_STATE_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_SAVE_STATE_CALL_H_

#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/recent_answers.h"
#include "services/inference/calls/request_call.h"
#include "worker/engine/engine.h"

namespace hearth {

class SaveStateCall final : public RequestCall {
 public:
  using RequestCall::RequestCall;

  void Start(Engine* engine, FairPool* pool, RecentAnswers* answers, const std::string& tenant,
             const grpc::ByteBuffer& request);

 private:
  bool TakeNext(grpc::ByteBuffer* message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeforeFinish() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // On the pool. The request that computes what the state has, once there is room for it.
  absl::StatusOr<EngineRequest> Prepare(const RecentAnswer& answer) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<EngineRequestHandle>> Submit(EngineRequest request) override;
  void MakeSnapshot(SnapshotMaker make) ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeSnapshot(std::string snapshot) ABSL_LOCKS_EXCLUDED(mutex_);

  // Set by Prepare: what goes on from the state.
  EngineRequest rest_;
  size_t prompt_tokens_ = 0;
  bool made_ ABSL_GUARDED_BY(mutex_) = false;
  std::string header_ ABSL_GUARDED_BY(mutex_);    // sent first
  std::string snapshot_ ABSL_GUARDED_BY(mutex_);  // sent behind it
  size_t sent_ ABSL_GUARDED_BY(mutex_) = 0;       // bytes of both
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_SAVE_STATE_CALL_H_
