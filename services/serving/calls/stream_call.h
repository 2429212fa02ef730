// StreamCall: a server's call that answers with a stream: one write at a time, then Finish once.
//
// Messages wait in a queue. OnGone is called when the caller goes away, by cancelling or during a
// write, and when it does not take a write: the call is then cancelled (admission.h).
// Thread safety: gRPC calls the reactor from its threads, senders from their own; mutex_ guards the
// shared fields.
// Ownership: made by make_shared; keeps itself, and the handles given to KeepUntilDone, from Enter
// until OnDone. A thread that holds the last reference after that finds nothing of the service in
// it.
// Invariants: (1) one write is in progress at most; (2) Finish is called once: when the call has
// ended, all ready messages are written and nobody holds it; (3) no message becomes ready after the
// end; (4) the admission counts the call until all handles are released.
#ifndef HEARTH_SERVICES_SERVING_CALLS_STREAM_CALL_H_
#define HEARTH_SERVICES_SERVING_CALLS_STREAM_CALL_H_

#include <grpcpp/grpcpp.h>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/caller_gone.h"
#include "services/serving/access/identity.h"
#include "services/serving/calls/admission.h"

namespace hearth {

class StreamCall : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                   public std::enable_shared_from_this<StreamCall> {
 public:
  explicit StreamCall(grpc::CallbackServerContext* context) : context_(context) {}

  // Begins the stream with a request of `bytes`. Returns the caller, or the error to End with.
  // `method` must be a literal.
  absl::StatusOr<Identity> Enter(Admission* admission, const char* method, uint64_t bytes);
  // Ends the call with `status`, unless it ended before, once all ready messages are written.
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Null when the server drains.
  Admission::Call* call() const { return call_.get(); }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancel() final { OnGone(); }
  void OnDone() final;

 protected:
  // The caller receives nothing any more. May be called twice; the call is not done during it.
  virtual void OnGone() { Abort(CallerGone()); }
  // The server drains: what would go on for long is to end.
  virtual void OnDrain(const absl::Status&) {}
  // The next message, if one is ready: the first of the queue.
  virtual bool TakeNext(grpc::ByteBuffer* message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Releases everything that must be gone before the caller learns of the end.
  virtual void BeforeFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}

  // As End, but drops the queue, also of a call that ended before.
  void Abort(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void Push(grpc::ByteBuffer message) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same without WriteNext, which must be called before the mutex is released.
  void EndLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AbortLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PushLocked(grpc::ByteBuffer message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Holds the call while `submit` hands work to a pool, whose job must call Release; an error of
  // `submit` ends the call.
  void Delegate(absl::FunctionRef<absl::Status()> submit) ABSL_LOCKS_EXCLUDED(mutex_);
  // The call does not finish, and its context stays valid, until as many calls of Release.
  void Hold() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { ++holds_; }
  void Release() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return state_ != State::kOpen; }
  bool writing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return writing_; }
  size_t ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ready_.size(); }
  uint64_t ready_bytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ready_bytes_; }

  // Keeps the handle until OnDone. REQUIRES: the service's handler has not returned yet.
  void KeepUntilDone(std::shared_ptr<void> handle) {
    assert(self_ != nullptr);
    kept_.push_back(std::move(handle));
  }
  template <typename Call>
  static std::shared_ptr<Call> Shared(Call* call) {
    return std::static_pointer_cast<Call>(call->shared_from_this());
  }
  template <typename Call>
  static std::weak_ptr<Call> Weak(Call* call) {
    return Shared(call);
  }

  grpc::CallbackServerContext* const context_;
  absl::Mutex mutex_;

 private:
  enum class State { kOpen, kEnded, kFinished };

  void OnEndRequested(EndReason reason, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  std::shared_ptr<StreamCall> self_;  // held for gRPC
  std::unique_ptr<Admission::Call> call_;
  std::vector<std::shared_ptr<void>> kept_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kOpen;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  int holds_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // of the end
  std::deque<grpc::ByteBuffer> ready_ ABSL_GUARDED_BY(mutex_);
  uint64_t ready_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  grpc::ByteBuffer current_;  // read by gRPC while writing_
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_STREAM_CALL_H_
