// LoadStateCall: one LoadState stream: receives a file, checks it on a pool, and puts its keys and
// values into the worker's pool.
//
// Thread safety: gRPC calls the reactor from its threads, one read at a time. Ownership: keeps
// itself until OnDone; the service must outlive it.
// Invariants: (1) there is room for all that was received before more is read; (2) Finish is called
// once; (3) a call whose caller does not keep its pace (limit.h) ends.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_LOAD_STATE_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_LOAD_STATE_CALL_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
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
  void Read() ABSL_LOCKS_EXCLUDED(mutex_);
  void LosePlace(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(absl::Status status);

  const Service service_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  std::shared_ptr<LoadStateCall> self_;    // held for gRPC
  std::unique_ptr<Admission::Call> call_;  // null when the server drains
  std::string tenant_;
  std::unique_ptr<Limit::Place> place_;
  StateLimit::Reservation room_;
  grpc::ByteBuffer message_;
  std::string file_;
  uint64_t file_bytes_ = 0;  // that it announces; 0: not known yet
  bool ended_ = false;

  absl::Mutex mutex_;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);  // why it lost its place
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_LOAD_STATE_CALL_H_
