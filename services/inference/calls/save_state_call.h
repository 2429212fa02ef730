// SaveStateCall: one SaveState stream: has the engine make the snapshot of an inference, and sends
// it behind the state's header.
//
// Thread safety: stream_call.h; shared fields are under mutex_. Ownership: shared by gRPC, until
// OnDone, and by the engine's callbacks; the service is used only while the call is held.
// Invariants: (1) the file is made once its room is taken, and both are gone before the caller
// learns of the end; (2) one message is made at a time, when the caller has taken the one before;
// (3) a call that is over, or too slow to be within kStateTimeout, cancels its request.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_SAVE_STATE_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_SAVE_STATE_CALL_H_

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/recent_answers.h"
#include "services/inference/calls/state_limit.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/calls/stream_call.h"
#include "worker/engine/engine.h"

namespace hearth {

class SaveStateCall final : public StreamCall {
 public:
  struct Service {
    Engine* engine = nullptr;
    FairPool* pool = nullptr;
    RecentAnswers* answers = nullptr;
    StateLimit* limit = nullptr;
    std::string tenant;
    absl::Duration timeout = kStateTimeout, patience = kStatePatience;
  };

  using StreamCall::StreamCall;

  // `place`: kept until the caller learns of the end.
  void Start(Service service, grpc::ByteBuffer request, std::shared_ptr<void> place);

 private:
  void OnGone() override;
  bool TakeNext(grpc::ByteBuffer* message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeforeFinish() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // On the pool, with the call held.
  absl::Status Begin(const grpc::ByteBuffer& request) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Submit(EngineRequest rest, size_t prompt_tokens) ABSL_LOCKS_EXCLUDED(mutex_);
  void MakeSnapshot(const EngineRequest& rest, size_t prompt_tokens, SnapshotMaker make)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeSnapshot(const EngineRequest& rest, size_t prompt_tokens, std::string snapshot)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void SetAlarm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAlarm() ABSL_LOCKS_EXCLUDED(mutex_);
  void CancelRequest() ABSL_LOCKS_EXCLUDED(mutex_);

  Service service_;
  std::shared_ptr<void> place_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<StateLimit::Reservation> room_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<EngineRequestHandle> handle_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool made_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time made_at_ ABSL_GUARDED_BY(mutex_);
  std::string header_ ABSL_GUARDED_BY(mutex_);    // sent first
  std::string snapshot_ ABSL_GUARDED_BY(mutex_);  // sent behind it
  size_t sent_ ABSL_GUARDED_BY(mutex_) = 0;       // bytes of both
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_SAVE_STATE_CALL_H_
