// SaveStateCall: one SaveState stream: has the engine make the snapshot of an inference, and sends
// it behind the state's header.
//
// Thread safety: stream_call.h. Ownership: shared by gRPC, until OnDone, by jobs of the pool, which
// hold the call, and by the engine's callbacks.
// Invariants: (1) the file is made once its room is taken, and both are gone before the caller
// learns of the end; (2) one message is made at a time, when the caller has taken the one before.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_SAVE_STATE_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_SAVE_STATE_CALL_H_

#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/generator.h"
#include "services/serving/calls/stream_call.h"
#include "worker/engine/engine.h"

namespace hearth {

class SaveStateCall final : public StreamCall {
 public:
  SaveStateCall(grpc::CallbackServerContext* context, Generator* generator)
      : StreamCall(context), generator_(generator) {}

  void Start(Admission* admission, const Limit& limit, const grpc::ByteBuffer* request);

 private:
  void OnGone() override {
    cancel_.Cancel();
    StreamCall::OnGone();
  }
  bool TakeNext(grpc::ByteBuffer* message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeforeFinish() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // On the pool.
  absl::Status Begin(const std::string& tenant, const grpc::ByteBuffer& request);
  // The request that computes what the state has, once there is room for it.
  absl::StatusOr<EngineRequest> Prepare(const RecentAnswer& answer);
  void MakeSnapshot(SnapshotMaker make) ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeSnapshot(std::string snapshot) ABSL_LOCKS_EXCLUDED(mutex_);

  Generator* const generator_;
  RequestCancel cancel_;
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
