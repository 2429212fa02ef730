#include "services/store/lease_call.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/slice_wire.h"
#include "services/rpc/status_conversion.h"
#include "services/serving/calls/enter_call.h"
#include "services/store/store_conversion.h"

namespace hearth {
namespace {

// What a caller may ask for at most, whatever its flags say.
constexpr absl::Duration kMaxLease = absl::Minutes(10);
constexpr absl::Duration kMaxWait = absl::Minutes(10);
// Of a request for each place that its lease takes: it keeps the prompt for as long as it lasts.
constexpr size_t kLeaseBytes = size_t{64} << 10;

class LeaseCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                        public std::enable_shared_from_this<LeaseCall> {
 public:
  LeaseCall(TieredStore* store, CallGate* gate, FairPool* lookups,
            grpc::CallbackServerContext* context)
      : store_(store), gate_(gate), lookups_(lookups), context_(context) {}

  void Start(Identities* identities, StreamLimit* streams, const grpc::ByteBuffer& bytes);
  void OnWriteDone(bool ok) override;
  // How a caller says that it is done, and how one that died is noticed.
  void OnCancel() override { End(absl::OkStatus()); }
  // An alarm's thread may hold the last reference, when the service is gone: nothing of it is left.
  void OnDone() override {
    closing_.reset();   // waits for a run in progress
    followed_.reset();  // likewise
    place_.reset();
    call_.reset();
    self_.reset();
  }

 private:
  void Begin(const Identity& caller, const grpc::ByteBuffer& bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Refuse(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasEnded() ABSL_LOCKS_EXCLUDED(mutex_);
  void AskLater();
  void Ask() ABSL_LOCKS_EXCLUDED(mutex_);
  void Take(LeaseTurn turn) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetAlarm(absl::Time when) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAlarm(uint64_t round) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  TieredStore* const store_;
  CallGate* const gate_;
  FairPool* const lookups_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<LeaseCall> self_;       // held for gRPC
  std::unique_ptr<CallGate::Call> call_;  // null when the gate is closed
  std::shared_ptr<void> closing_, followed_;
  std::shared_ptr<void> place_;  // among the open streams
  std::string share_name_;       // at the pool
  uint64_t request_bytes_ = 0;
  PrefixQuery query_;  // set in Begin, as what is asked beside it
  LeaseAsk ask_;
  std::atomic<bool> over_{false};  // for whoever computes keys meanwhile
  bool waited_ = false;            // whoever set asking_ uses it

  absl::Mutex mutex_;
  LeaseTurn turn_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
  uint64_t round_ ABSL_GUARDED_BY(mutex_) = 0;      // of asking
  bool asking_ ABSL_GUARDED_BY(mutex_) = false;     // or about to
  bool ask_again_ ABSL_GUARDED_BY(mutex_) = false;  // woken meanwhile
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<v1::LeaseResponse> ready_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer current_;  // read by gRPC while writing_
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

uint32_t MsUntil(absl::Time when) {
  return static_cast<uint32_t>(std::max<int64_t>(0, absl::ToInt64Milliseconds(when - absl::Now())));
}

void LeaseCall::Start(Identities* identities, StreamLimit* streams, const grpc::ByteBuffer& bytes) {
  self_ = shared_from_this();
  const absl::StatusOr<Identity> caller = CallerOf(identities, *context_);
  call_ = EnterCall(gate_, caller, "Lease", *context_, bytes.Length());
  if (call_ == nullptr) return Refuse(CallGate::ClosedError());
  if (!caller.ok()) return Refuse(caller.status());
  absl::StatusOr<std::shared_ptr<void>> place =
      streams->Enter(*caller, 1 + static_cast<int>(bytes.Length() / kLeaseBytes));
  if (!place.ok()) return Refuse(place.status());
  place_ = *std::move(place);
  share_name_ = caller->ShareName();
  request_bytes_ = bytes.Length();
  closing_ = gate_->OnClose([this] { Close(); });
  followed_ = FollowCaller(identities, *context_, *caller,
                           [this](const absl::Status& status) { End(status); });
  const auto begin = [self = shared_from_this(), caller = *caller, bytes] {
    self->Begin(caller, bytes);
  };
  const absl::Status accepted = lookups_->SubmitRequest(share_name_, bytes.Length(), begin);
  if (!accepted.ok()) Refuse(accepted);
}

bool LeaseCall::HasEnded() {
  absl::MutexLock lock(&mutex_);
  return ended_;
}

void LeaseCall::Refuse(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  if (!ended_) status_ = std::move(status);
  started_ = ended_ = true;
  WriteNext();
}

// On the pool.
void LeaseCall::Begin(const Identity& caller, const grpc::ByteBuffer& bytes) {
  // A drain, or the caller's identity, may have ended it since: it has its status then.
  if (HasEnded()) return Refuse(absl::OkStatus());
  v1::LeaseRequest request;
  if (absl::Status status = ParseAwaited(*context_, bytes, &request); !status.ok()) {
    return Refuse(status);
  }
  absl::StatusOr<PrefixQuery> query = QueryFromProto(request.prefix(), caller);
  if (!query.ok()) return Refuse(query.status());
  query_ = *std::move(query);
  query_.stopped = [this] { return over_.load(); };
  call_->note()->tenant = query_.tenant;
  call_->note()->tokens = query_.token_ids.size();
  ObserveFields(store_, request.prefix(), query_.tenant);
  ask_.above_tokens = request.above_tokens();
  ask_.max_tokens = request.max_tokens();
  ask_.min_tokens = request.min_tokens();
  ask_.lease = std::min(absl::Milliseconds(request.lease_ms()), kMaxLease);
  ask_.wait_until = absl::Now() + std::min(absl::Milliseconds(request.wait_ms()), kMaxWait);
  // Woken after the call's end there is nothing to do, and maybe nothing left to do it with.
  ask_.wake = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->AskLater();
  };
  {
    absl::MutexLock lock(&mutex_);
    asking_ = true;
  }
  Ask();
  absl::MutexLock lock(&mutex_);
  started_ = true;  // OnDone may come from here on
  WriteNext();
}

// Asks again on the pool: the caller of this is a publisher's thread, or another lease's end.
void LeaseCall::AskLater() {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    if (std::exchange(asking_, true)) {
      ask_again_ = true;
      return;
    }
  }
  const auto ask = [self = shared_from_this()] { self->Ask(); };
  if (lookups_->Submit(share_name_, request_bytes_, ask).ok()) return;
  Take(LeaseTurn());  // too much is under way: go on alone
}

void LeaseCall::Ask() {
  LeaseTurn before;  // given up once the lock is released
  {
    absl::MutexLock lock(&mutex_);
    before = std::exchange(turn_, LeaseTurn());
    if (ended_) return;
    ask_.waited_for = before.boundary;
    ask_again_ = false;
    ++round_;
  }
  before.ticket.reset();
  if (gate_->closed()) return Take(LeaseTurn());  // those who hold leases were sent away before
  absl::StatusOr<LeaseTurn> turn = store_->Lease(query_, ask_);
  if (!turn.ok()) return End(turn.status());
  Take(*std::move(turn));
}

void LeaseCall::Take(LeaseTurn turn) {
  // What is left in `turn` is given up once the lock is released: that wakes others.
  bool again = false;
  {
    absl::MutexLock lock(&mutex_);
    asking_ = false;
    if (ended_) return;
    std::swap(turn_, turn);
    again = turn_.role == LeaseRole::kWait && ask_again_;
    if (turn_.role != LeaseRole::kWait || !std::exchange(waited_, true)) {
      if (!std::exchange(answered_, true)) call_->StopClock();  // what comes now lasts by design
      v1::LeaseResponse& response = ready_.emplace_back();
      response.set_boundary(turn_.boundary);
      response.set_usable_tokens(turn_.usable_tokens);
      response.set_matched_tokens(turn_.matched_tokens);
      if (turn_.role == LeaseRole::kWait) {
        response.set_turn(v1::LeaseResponse::WAIT);
        response.set_deadline_ms(MsUntil(ask_.wait_until));
      } else if (turn_.role == LeaseRole::kCompute) {
        response.set_turn(v1::LeaseResponse::COMPUTE);
        response.set_deadline_ms(MsUntil(turn_.until));
      }
    }
    if (turn_.role == LeaseRole::kNone) ended_ = true;
    if (!ended_ && !again) SetAlarm(turn_.until);
    WriteNext();
  }
  if (again) AskLater();
}

void LeaseCall::SetAlarm(absl::Time when) {
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(absl::ToChronoTime(when), [weak = weak_from_this(), round = round_](bool rang) {
    const auto self = rang ? weak.lock() : nullptr;
    if (self != nullptr) self->OnAlarm(round);
  });
}

// The lease is over, or what was waited for is late.
void LeaseCall::OnAlarm(uint64_t round) {
  bool computing = false;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || round != round_) return;
    computing = turn_.role == LeaseRole::kCompute;
  }
  if (computing) return End(absl::OkStatus());
  AskLater();
}

// Draining: whoever waits computes, and a lease is of no use any more.
void LeaseCall::Close() {
  {
    absl::MutexLock lock(&mutex_);
    if (!ended_ && turn_.role != LeaseRole::kCompute) ready_.emplace_back();
  }
  End(absl::OkStatus());
}

void LeaseCall::End(absl::Status status) {
  over_ = true;
  LeaseTurn turn;  // given up once the lock is released
  absl::MutexLock lock(&mutex_);
  std::swap(turn_, turn);
  if (ended_) return;
  ended_ = true;
  status_ = std::move(status);
  WriteNext();
}

void LeaseCall::OnWriteDone(bool ok) {
  LeaseTurn turn;  // given up once the lock is released
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  if (!ok) {
    ended_ = true;
    ready_.clear();
    std::swap(turn_, turn);
  }
  WriteNext();
}

// gRPC allows one write at a time, and Finish once, after it.
void LeaseCall::WriteNext() {
  if (writing_ || finished_ || !started_) return;
  if (!ready_.empty()) {
    current_ = MessageBytes(ready_.front());
    ready_.pop_front();
    writing_ = true;
    StartWrite(&current_);
    return;
  }
  if (!ended_) return;
  finished_ = true;
  const absl::Status status = call_ == nullptr ? status_ : call_->Finish(status_);
  Finish(ToGrpcStatus(status, context_));
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartLease(TieredStore* store, CallGate* gate,
                                                       Identities* identities, FairPool* lookups,
                                                       StreamLimit* streams,
                                                       grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) {
  const auto call = std::make_shared<LeaseCall>(store, gate, lookups, context);
  call->Start(identities, streams, TakeRequest(request));
  return call.get();
}

}  // namespace hearth
