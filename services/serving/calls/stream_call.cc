#include "services/serving/calls/stream_call.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/rpc/status_conversion.h"

namespace hearth {
namespace {

// Of a write in progress when its call is aborted.
constexpr absl::Duration kAbortPatience = absl::Seconds(1);

}  // namespace

absl::StatusOr<Identity> StreamCall::Enter(Admission* admission, const char* method,
                                           uint64_t bytes) {
  assert(self_ == nullptr);
  self_ = shared_from_this();
  return admission->Enter(method, *context_, bytes, &call_);
}

absl::Status StreamCall::TakePlace(Limit* limit, const Identity& caller, bool keeps_pace,
                                   int weight) {
  Limit::EndStream end;
  if (keeps_pace) {
    end = [weak = weak_from_this()](const absl::Status& why) {
      if (const auto self = weak.lock()) self->Abort(why);
    };
  }
  auto place = limit->Enter(caller, std::move(end), weight);
  if (!place.ok()) return place.status();
  place_ = *std::move(place);
  place_->WaitsForCaller(false);
  return absl::OkStatus();
}

void StreamCall::OnWriteDone(bool ok) {
  if (!ok) OnGone();
  absl::MutexLock lock(&mutex_);
  assert(writing_);
  writing_ = false;
  if (place_ != nullptr) {
    place_->WaitsForCaller(false);
    if (ok) place_->Moved(current_.Length());
  }
  WriteNext();
}

void StreamCall::OnDone() {
  kept_.clear();  // waits for callbacks in progress
  call_.reset();
  // May be the last reference: nothing of this object may be touched after it.
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
  if (writing_) WatchWrite(std::min(patience_, kAbortPatience));
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

void StreamCall::WatchWrite(absl::Duration patience) {
  mutex_.AssertHeld();
  watch_ = std::make_unique<grpc::Alarm>();
  const gpr_timespec from_now =
      gpr_time_from_millis(absl::ToInt64Milliseconds(patience), GPR_TIMESPAN);
  watch_->Set(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), from_now),
              [weak = weak_from_this(), write = writes_](bool rang) {
                const auto self = rang ? weak.lock() : nullptr;
                if (self != nullptr) self->LookAtWrite(write);
              });
}

void StreamCall::LookAtWrite(uint64_t write) {
  std::unique_ptr<grpc::Alarm> rang;  // let go once the lock is released
  {
    absl::MutexLock lock(&mutex_);
    rang = std::move(watch_);
    if (!writing_) return;
    if (writes_ != write) return WatchWrite(patience_);
    Hold();
  }
  Abort(absl::DeadlineExceededError(
      absl::StrCat("the caller took nothing for ", absl::FormatDuration(patience_))));
  OnGone();
  context_->TryCancel();
  absl::MutexLock lock(&mutex_);
  Release();
}

void StreamCall::WriteNext() {
  mutex_.AssertHeld();
  if (writing_ || state_ == State::kFinished) return;
  if (TakeNext(&current_)) {
    writing_ = true;
    ++writes_;
    if (place_ != nullptr) place_->WaitsForCaller(true);
    if (watch_ == nullptr) WatchWrite(patience_);
    StartWrite(&current_);
    return;
  }
  if (!ended() || holds_ > 0) return;
  assert(ready_.empty());  // all was written, or dropped
  state_ = State::kFinished;
  current_.Clear();
  BeforeFinish();
  place_.reset();
  const absl::Status status = call_ == nullptr ? status_ : call_->Finish(status_);
  Finish(ToGrpcStatus(status, context_));
}

}  // namespace hearth
