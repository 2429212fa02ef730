// LoadStateCall: one LoadState stream: receives a file, checks it on a pool, and puts its keys and
// values into the worker's pool.
//
// Thread safety: gRPC calls the reactor from its threads, one read at a time. Ownership: keeps
// itself until OnDone; the service must outlive it.
// Invariants: (1) there is room for all that was received before more is read; (2) Finish is called
// once; (3) a call whose bytes come too slowly to be there within kStateTimeout is cancelled.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_LOAD_STATE_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_LOAD_STATE_CALL_H_

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "services/inference/calls/state_limit.h"
#include "services/serving/calls/admission.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/calls/limit.h"
#include "services/serving/door/identity.h"
#include "worker/engine/engine.h"

namespace hearth {

class LoadStateCall final : public grpc::ServerReadReactor<grpc::ByteBuffer>,
                            public std::enable_shared_from_this<LoadStateCall> {
 public:
  struct Service {
    Engine* engine = nullptr;
    FairPool* pool = nullptr;
    StateLimit* limit = nullptr;
    Limit* places = nullptr;
    Admission* admission = nullptr;
    absl::Duration timeout = kStateTimeout, patience = kStatePatience;
  };
  LoadStateCall(Service service, grpc::CallbackServerContext* context, grpc::ByteBuffer* response)
      : service_(service), context_(context), response_(response), room_(service.limit) {}

  void Start();

  void OnReadDone(bool ok) override;
  // The read in progress fails then, and ends the call.
  void OnCancel() override {}
  void OnDone() override;

 private:
  absl::Status TakeMessage();
  // Once the first bytes are there: how many there will be.
  absl::Status ReadPrelude();
  absl::Status ReceivedAll();
  absl::Status Load();  // on the pool
  absl::Status EndedEarly() ABSL_LOCKS_EXCLUDED(end_mutex_);
  void SetAlarm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(end_mutex_);
  void OnAlarm() ABSL_LOCKS_EXCLUDED(end_mutex_);
  absl::Status CheckPace() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(end_mutex_);
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(end_mutex_);

  const Service service_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  std::shared_ptr<LoadStateCall> self_;    // held for gRPC
  std::unique_ptr<Admission::Call> call_;  // null when the server drains
  std::string tenant_;
  std::shared_ptr<void> place_;
  StateLimit::Reservation room_;
  grpc::ByteBuffer message_;
  std::string file_;
  uint64_t file_bytes_ = 0;  // that it announces; 0: not known yet
  absl::Time begun_at_;

  absl::Mutex end_mutex_;
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(end_mutex_);
  // Of the file, and how many of them are there: 0: not known yet.
  uint64_t announced_ ABSL_GUARDED_BY(end_mutex_) = 0, received_ ABSL_GUARDED_BY(end_mutex_) = 0;
  absl::Status late_ ABSL_GUARDED_BY(end_mutex_);  // an error: it was too slow
  bool ended_ ABSL_GUARDED_BY(end_mutex_) = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_LOAD_STATE_CALL_H_
