// StreamCall: a server's call that answers with a stream: one write at a time, and in the end one
// Finish.
//
// Messages wait in a queue. OnGone is called when the caller leaves (it cancels, or is lost during
// a write). Admission cancels the call of a caller that does not read (admission.h), which also
// calls OnGone.
// Thread safety: gRPC calls the reactor from its threads, senders from their own; mutex_ guards the
// shared fields.
// Ownership: made by make_shared; keeps itself, and the handles given to KeepUntilDone, from Enter
// until OnDone. A thread that holds the last reference after OnDone can no longer reach the service
// through it.
// Invariants: (1) at most one write is in progress; (2) Finish is called once: when the call has
// ended, all ready messages are written and no thread holds the call; (3) no message becomes ready
// after the end; (4) the admission counts the call until all handles are released.
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

  // Begins the stream with a request of `bytes`. Returns the caller, or the error to pass to End.
  // `method` must be a literal.
  absl::StatusOr<Identity> Enter(Admission* admission, const char* method, uint64_t bytes);
  // Ends the call with `status` once all ready messages are written. Later calls do nothing.
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Null if the server drains.
  Admission::Call* call() const { return call_.get(); }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancel() final { OnGone(); }
  void OnDone() final;

 protected:
  // Called when the caller has left, possibly twice. OnDone comes only after OnGone has returned.
  virtual void OnGone() { Abort(CallerGone()); }
  // Called when the server drains. A call that lasts by design must end.
  virtual void OnDrain(const absl::Status&) {}
  // Takes the next ready message: the first of the queue. Returns false if there is none.
  virtual bool TakeNext(grpc::ByteBuffer* message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Releases everything that must be freed before the caller sees the end of the call.
  virtual void BeforeFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}

  // Ends the call with `status` and drops the queued messages, even if End was called before.
  void Abort(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void Push(grpc::ByteBuffer message) ABSL_LOCKS_EXCLUDED(mutex_);
  // As End, Abort and Push, but for a thread that holds the mutex. REQUIRES: the thread calls
  // WriteNext before it releases the mutex.
  void EndLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AbortLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PushLocked(grpc::ByteBuffer message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Holds the call, then calls `submit`, which hands work to a pool. The job must call Release. If
  // `submit` returns an error, the call ends with it.
  void Delegate(absl::FunctionRef<absl::Status()> submit) ABSL_LOCKS_EXCLUDED(mutex_);
  // The call and its context stay valid until each Hold is matched by a Release.
  void Hold() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { ++holds_; }
  void Release() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return state_ != State::kOpen; }
  bool writing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return writing_; }
  size_t ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ready_.size(); }
  uint64_t ready_bytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ready_bytes_; }

  // Keeps `handle` alive until OnDone. REQUIRES: the service's handler has not returned yet.
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

  std::shared_ptr<StreamCall> self_;  // keeps this object alive for gRPC until OnDone
  std::unique_ptr<Admission::Call> call_;
  std::vector<std::shared_ptr<void>> kept_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kOpen;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  int holds_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // the status to pass to Finish
  std::deque<grpc::ByteBuffer> ready_ ABSL_GUARDED_BY(mutex_);
  uint64_t ready_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  grpc::ByteBuffer current_;  // the message that gRPC reads while writing_ is true
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_STREAM_CALL_H_
