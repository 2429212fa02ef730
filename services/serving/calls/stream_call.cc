#include "services/serving/calls/stream_call.h"

#include <cassert>
#include <utility>

#include "services/rpc/status_conversion.h"

namespace hearth {

absl::StatusOr<Identity> StreamCall::Enter(Admission* admission, const char* method,
                                           uint64_t bytes) {
  assert(self_ == nullptr);
  self_ = shared_from_this();
  const absl::StatusOr<Identity> caller = admission->Enter(method, *context_, bytes, &call_);
  if (!caller.ok()) return caller;
  call_->EndBy([weak = weak_from_this()](EndReason reason, const absl::Status& why) {
    if (const auto self = weak.lock()) self->OnEndRequested(reason, why);
  });
  return caller;
}

void StreamCall::OnEndRequested(EndReason reason, const absl::Status& why) {
  if (reason == EndReason::kCutOff) return;
  {
    absl::MutexLock lock(&mutex_);
    if (state_ == State::kFinished) return;
    Hold();
  }
  if (reason == EndReason::kDrain) {
    OnDrain(why);
  } else {
    Abort(why);
    OnGone();
  }
  if (reason == EndReason::kPace) context_->TryCancel();
  absl::MutexLock lock(&mutex_);
  Release();
}

void StreamCall::OnWriteDone(bool ok) {
  if (!ok) OnGone();
  absl::MutexLock lock(&mutex_);
  assert(writing_);
  writing_ = false;
  call_->SetWaitingForCaller(false);
  if (ok) call_->AddTransferred(current_.Length());
  WriteNext();
}

void StreamCall::OnDone() {
  kept_.clear();  // the destructor of a handle waits for its callbacks in progress
  call_.reset();
  // This may be the last reference: do not use the object afterwards.
  const std::shared_ptr<StreamCall> last = std::move(self_);
}

void StreamCall::End(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  EndLocked(std::move(status));
  WriteNext();
}

void StreamCall::Abort(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  AbortLocked(std::move(status));
  WriteNext();
}

void StreamCall::Push(grpc::ByteBuffer message) {
  absl::MutexLock lock(&mutex_);
  PushLocked(std::move(message));
  WriteNext();
}

void StreamCall::EndLocked(absl::Status status) {
  mutex_.AssertHeld();
  if (ended()) return;
  state_ = State::kEnded;
  status_ = std::move(status);
}

void StreamCall::AbortLocked(absl::Status status) {
  mutex_.AssertHeld();
  EndLocked(std::move(status));
  ready_.clear();
  ready_bytes_ = 0;
  if (writing_) call_->BeginFinalWrite();
}

void StreamCall::PushLocked(grpc::ByteBuffer message) {
  mutex_.AssertHeld();
  if (ended()) return;
  ready_bytes_ += message.Length();
  ready_.push_back(std::move(message));
}

void StreamCall::Delegate(absl::FunctionRef<absl::Status()> submit) {
  {
    absl::MutexLock lock(&mutex_);
    if (state_ == State::kFinished) return;
    Hold();
  }
  const absl::Status accepted = submit();
  if (accepted.ok()) return;
  absl::MutexLock lock(&mutex_);
  EndLocked(accepted);
  Release();
}

void StreamCall::Release() {
  mutex_.AssertHeld();
  assert(holds_ > 0);
  --holds_;
  WriteNext();
}

bool StreamCall::TakeNext(grpc::ByteBuffer* message) {
  mutex_.AssertHeld();
  if (ready_.empty()) return false;
  *message = std::move(ready_.front());
  ready_.pop_front();
  assert(ready_bytes_ >= message->Length());
  ready_bytes_ -= message->Length();
  return true;
}

void StreamCall::WriteNext() {
  mutex_.AssertHeld();
  if (writing_ || state_ == State::kFinished) return;
  if (TakeNext(&current_)) {
    writing_ = true;
    call_->SetWaitingForCaller(true);
    StartWrite(&current_);
    return;
  }
  if (!ended() || holds_ > 0) return;
  assert(ready_.empty());  // every message was written or dropped
  state_ = State::kFinished;
  current_.Clear();
  BeforeFinish();
  const absl::Status status = call_ == nullptr ? status_ : call_->Finish(status_);
  Finish(ToGrpcStatus(status, context_));
}

}  // namespace hearth
