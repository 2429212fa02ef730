// UploadCall: a server's call whose caller sends many messages: reads one message at a time, and
// checks the caller's pace.
//
// Thread safety: gRPC calls the reactor from its threads; at most one read, one write, or the work
// on one message is in progress. Ownership: made by make_shared; keeps itself from Enter until
// OnDone.
// Invariants: (1) Finish is called once; (2) a call whose caller is too slow, or whose identity has
// changed (admission.h), ends before it reads again.
#ifndef HEARTH_SERVICES_SERVING_CALLS_UPLOAD_CALL_H_
#define HEARTH_SERVICES_SERVING_CALLS_UPLOAD_CALL_H_

#include <grpcpp/grpcpp.h>

#include <cassert>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "services/rpc/status_conversion.h"
#include "services/serving/access/identity.h"
#include "services/serving/calls/admission.h"

namespace hearth {

template <typename Reactor>
class UploadCall : public Reactor, public std::enable_shared_from_this<UploadCall<Reactor>> {
 public:
  explicit UploadCall(grpc::CallbackServerContext* context) : context_(context) {}

  void OnReadDone(bool ok) final {
    {
      absl::MutexLock lock(&mutex_);
      if (std::exchange(waits_for_, Waits::kNothing) != Waits::kRead)
        return;  // GiveUp has ended the call
    }
    call_->SetWaitingForCaller(false);
    if (ok) {
      call_->CountMessage(message_.Length());
      call_->AddTransferred(message_.Length());
    }
    const absl::Status status = ok ? OnMessage() : GivenUpOr(OnUploadEnd());
    if (!status.ok()) End(status);
  }
  // Nothing to do: a cancel fails the read, write or work in progress, and this failure ends the
  // call.
  void OnCancel() final {}
  void OnDone() final {
    call_.reset();
    const std::shared_ptr<UploadCall> last = std::move(self_);  // possibly the last reference
  }

 protected:
  enum class Waits { kNothing, kRead, kWrite };

  // Returns the caller, for whom a slot was taken, or the error to pass to End.
  absl::StatusOr<Identity> Enter(Admission* admission, const char* method, const Limit& limit) {
    self_ = this->shared_from_this();
    const absl::StatusOr<Identity> caller =
        admission->Enter(method, *context_, 0, &call_, /*is_upload=*/true);
    if (!caller.ok()) return caller;
    if (absl::Status placed = call_->TakePlace(limit, *caller); !placed.ok()) return placed;
    call_->EndBy([weak = this->weak_from_this()](EndReason reason, const absl::Status& why) {
      const bool is_ours = reason != EndReason::kDrain && reason != EndReason::kCutOff;
      const auto self = is_ours ? weak.lock() : nullptr;
      if (self != nullptr) self->GiveUp(why);
    });
    return caller;
  }
  // Called when message_ has arrived. Starts the next operation, or returns the error to pass to
  // End.
  virtual absl::Status OnMessage() = 0;
  // Called when the caller has sent its last message, or has left. Starts the next operation, or
  // returns the error to pass to End.
  virtual absl::Status OnUploadEnd() = 0;
  // Releases everything that must be freed before the caller sees the end of the call.
  virtual void BeforeFinish() = 0;

  void Read() {
    BeginWait(Waits::kRead, [this] { this->StartRead(&message_); });
  }
  // Starts a read or a write; if the call was given up, ends it instead.
  void BeginWait(Waits waits, absl::FunctionRef<void()> start) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::Status given_up;
    {
      absl::MutexLock lock(&mutex_);
      given_up = given_up_;
      // Start under the lock: a thread that sees waits_for_ may end the call and free it.
      if (given_up.ok()) {
        waits_for_ = waits;
        call_->SetWaitingForCaller(true);
        start();
      }
    }
    if (!given_up.ok()) End(given_up);
  }
  void EndWait() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    waits_for_ = Waits::kNothing;
    call_->SetWaitingForCaller(false);
  }
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      assert(!ended_);  // Finish is called once
      ended_ = true;
    }
    BeforeFinish();
    const absl::Status noted = call_ == nullptr ? status : call_->Finish(status);
    this->Finish(ToGrpcStatus(noted, context_));
  }
  // Returns the reason for giving up the call; `other` if the call was not given up.
  absl::Status GivenUpOr(absl::Status other) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return given_up_.ok() ? other : given_up_;
  }

  grpc::CallbackServerContext* const context_;
  std::unique_ptr<Admission::Call> call_;  // null if the server drains
  grpc::ByteBuffer message_;

 private:
  void GiveUp(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (ended_ || !given_up_.ok()) return;
      given_up_ = why;
      // If the caller does not read, only a cancel ends the write. End waits for this lock.
      if (waits_for_ == Waits::kWrite) context_->TryCancel();
      if (waits_for_ != Waits::kRead) return;  // the call ends before its next read
      waits_for_ = Waits::kNothing;
    }
    End(why);  // the read in progress fails
  }

  std::shared_ptr<UploadCall> self_;  // keeps this object alive for gRPC until OnDone
  absl::Mutex mutex_;
  absl::Status given_up_ ABSL_GUARDED_BY(mutex_);  // why the call was given up; set at most once
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  Waits waits_for_ ABSL_GUARDED_BY(mutex_) = Waits::kNothing;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_UPLOAD_CALL_H_
