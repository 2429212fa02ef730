// StreamCall: a server's call that answers with a stream: one write at a time, then Finish once.
//
// Messages wait in a queue; OnGone hears of a caller that goes away, by cancelling or in the middle
// of a write. Thread safety: gRPC calls the reactor from its threads, whoever has
// something to send from its own; mutex_ guards what they share. Ownership: made by make_shared;
// keeps itself, and what KeepUntilDone was given, from Enter until OnDone. A thread that holds the
// last reference later finds nothing of the service in it. A write that its caller does not take is
// given up: between one and two times `patience` after it began, or a second after the call was
// aborted. Invariants: (1) one write is in progress at most; (2) Finish is called once: when the
// call has ended, all that was ready is written and nobody holds it; (3) nothing gets ready after
// the end; (4) the gate counts the call until all that it kept is let go.
#ifndef HEARTH_SERVICES_SERVING_CALLS_STREAM_CALL_H_
#define HEARTH_SERVICES_SERVING_CALLS_STREAM_CALL_H_

#include <grpcpp/alarm.h>
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
#include "absl/time/time.h"
#include "proto/caller_gone.h"
#include "services/serving/calls/call_gate.h"
#include "services/serving/door/identity.h"

namespace hearth {

// The time in which a publish must send more than next to nothing, as it holds what it staged, a
// fetch take as much, as it holds what it was promised (stream_places.h), and any stream a message.
inline constexpr absl::Duration kStreamPatience = absl::Seconds(60);

class StreamCall : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                   public std::enable_shared_from_this<StreamCall> {
 public:
  explicit StreamCall(grpc::CallbackServerContext* context,
                      absl::Duration patience = kStreamPatience)
      : context_(context), patience_(patience) {}

  // How every stream begins, with a request of `bytes`: through the gate. Who calls, or with what
  // to End. `method` must be a literal.
  absl::StatusOr<Identity> Enter(CallGate* gate, Identities* identities, const char* method,
                                 uint64_t bytes);
  // Ends the call with `status`, unless it ended before, once what is ready is written.
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Null when the gate was closed.
  CallGate::Call* call() const { return call_.get(); }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancel() final { OnGone(); }
  void OnDone() final;

 protected:
  // The caller takes nothing any more. May be called twice; the call is not done during it.
  virtual void OnGone() { Abort(CallerGone()); }
  // The next message, if one is ready: the first of the queue.
  virtual bool TakeNext(grpc::ByteBuffer* message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets go of anything that must be gone when the caller hears of the end.
  virtual void BeforeFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}

  // As End, but drops the queue, also of a call that ended before.
  void Abort(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void Push(grpc::ByteBuffer message) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same without WriteNext, which is to follow before the mutex is released.
  void EndLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AbortLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PushLocked(grpc::ByteBuffer message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has `submit` hand work to a pool, which Releases the call; its error ends the call.
  void Delegate(absl::FunctionRef<absl::Status()> submit) ABSL_LOCKS_EXCLUDED(mutex_);
  // The call does not finish, so its context stays, until as many Releases.
  void Hold() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { ++holds_; }
  void Release() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return state_ != State::kOpen; }
  bool writing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return writing_; }
  size_t ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ready_.size(); }
  uint64_t ready_bytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ready_bytes_; }
  // REQUIRES: a write is in progress.
  uint64_t written_bytes() const {
    assert(current_.Valid());
    return current_.Length();
  }

  // Until OnDone. REQUIRES: the service's handler has not returned yet.
  void KeepUntilDone(std::shared_ptr<void> handle) { kept_.push_back(std::move(handle)); }
    assert(self_ != nullptr);
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

  // Looks after so long whether the write that is in progress now still is.
  void WatchWrite(absl::Duration patience) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LookAtWrite(uint64_t write) ABSL_LOCKS_EXCLUDED(mutex_);

  const absl::Duration patience_;
  std::shared_ptr<StreamCall> self_;  // held for gRPC
  std::unique_ptr<CallGate::Call> call_;
  std::vector<std::shared_ptr<void>> kept_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kOpen;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t writes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<grpc::Alarm> watch_ ABSL_GUARDED_BY(mutex_);  // null: no write is watched
  int holds_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // of the end
  std::deque<grpc::ByteBuffer> ready_ ABSL_GUARDED_BY(mutex_);
  uint64_t ready_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  grpc::ByteBuffer current_;  // read by gRPC while writing_
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_STREAM_CALL_H_
