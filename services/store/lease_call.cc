#include <grpcpp/alarm.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "services/rpc/slice_wire.h"
#include "services/serving/calls/stream_call.h"
#include "services/store/cache_service.h"
#include "services/store/store_conversion.h"

namespace hearth {
namespace {

// No caller gets a longer lease, whatever its flags.
constexpr absl::Duration kMaxLease = absl::Minutes(10);
constexpr absl::Duration kMaxWait = absl::Minutes(10);
// A lease keeps its request in memory, so it takes one more slot for each kLeaseBytes of the
// request.
constexpr size_t kLeaseBytes = size_t{64} << 10;

// LeaseCall: one Lease stream of the store. It tells a caller that misses a prefix whether to
// compute the prefix, or to wait for another caller that computes it.
//
// Each question to the store runs on a pool. A caller that waits holds no thread: a publish, the
// end of another lease, or an alarm wakes the call, which then asks the store again. If a caller
// computes, the stream stays open as its lease, and ends when the caller is done or gone.
// Invariants: (1) when the call ends, its claim in the store's tables is released; (2) while the
// server drains, no caller waits.
class LeaseCall final : public StreamCall {
 public:
  LeaseCall(CacheService* service, grpc::CallbackServerContext* context)
      : StreamCall(context), service_(service) {}

  void Start(const grpc::ByteBuffer& bytes);

 private:
  // Called when the caller has cancelled the stream (it is done), or has died.
  void OnGone() override {
    Abort(absl::OkStatus());
    Stop(absl::OkStatus());
  }
  absl::Status Begin(const Identity& caller, const grpc::ByteBuffer& bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void AskLater() ABSL_LOCKS_EXCLUDED(mutex_);
  void Ask() ABSL_LOCKS_EXCLUDED(mutex_);
  void Take(ClaimDecision turn) ABSL_LOCKS_EXCLUDED(mutex_);
  void Answer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetAlarm(absl::Time when) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAlarm(uint64_t round) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the call and releases its claim.
  void Stop(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDrain(const absl::Status&) override ABSL_LOCKS_EXCLUDED(mutex_);

  CacheService* const service_;
  std::string share_name_;  // name by which the call takes turns in the pool
  uint64_t request_bytes_ = 0;
  PrefixQuery query_;  // query_ and ask_ are set in Begin
  ClaimRequest ask_;
  std::atomic<bool> stopped_{false};  // stops the thread that computes keys
  bool waited_ = false;               // used only by the thread that set asking_

  ClaimDecision turn_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
  uint64_t round_ ABSL_GUARDED_BY(mutex_) = 0;      // number of times that the store was asked
  bool asking_ ABSL_GUARDED_BY(mutex_) = false;     // the store is being asked, or about to be
  bool ask_again_ ABSL_GUARDED_BY(mutex_) = false;  // the call was woken while it asked
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
};

uint32_t MsUntil(absl::Time when) {
  return static_cast<uint32_t>(std::max<int64_t>(0, absl::ToInt64Milliseconds(when - absl::Now())));
}

void LeaseCall::Start(const grpc::ByteBuffer& bytes) {
  const absl::StatusOr<Identity> caller = Enter(service_->admission(), "Lease", bytes.Length());
  if (!caller.ok()) return End(caller.status());
  const int weight = 1 + static_cast<int>(bytes.Length() / kLeaseBytes);
  const absl::Status placed = call()->TakePlace(kLeaseLimit, *caller, weight);
  if (!placed.ok()) return End(placed);
  share_name_ = caller->ShareName();
  request_bytes_ = bytes.Length();
  const auto begin = [self = Shared(this), caller = *caller, bytes] {
    const absl::Status begun = self->Begin(caller, bytes);
    absl::MutexLock lock(&self->mutex_);
    if (!begun.ok()) self->EndLocked(begun);
    self->Release();
  };
  Delegate([&] { return service_->lookups()->SubmitRequest(share_name_, request_bytes_, begin); });
}

// Runs on the pool.
absl::Status LeaseCall::Begin(const Identity& caller, const grpc::ByteBuffer& bytes) {
  // A drain, or a change of the caller's identity, may have ended the call already.
  if (stopped_) return absl::OkStatus();
  v1::LeaseRequest request;
  if (absl::Status status = ParseAwaited(*context_, bytes, &request); !status.ok()) return status;
  absl::StatusOr<PrefixQuery> query = QueryFromProto(request.prefix(), caller);
  if (!query.ok()) return query.status();
  query_ = *std::move(query);
  query_.stopped = [this] { return stopped_.load(); };
  call()->note()->tenant = query_.tenant;
  call()->note()->tokens = query_.token_ids.size();
  ObserveFields(service_->store(), request.prefix(), query_.tenant);
  ask_.above_tokens = request.above_tokens();
  ask_.max_tokens = request.max_tokens();
  ask_.min_tokens = request.min_tokens();
  ask_.compute_time = std::min(absl::Milliseconds(request.lease_ms()), kMaxLease);
  ask_.wait_until = absl::Now() + std::min(absl::Milliseconds(request.wait_ms()), kMaxWait);
  // Weak: after the end of the call there is nothing to do, and the call may be destroyed.
  ask_.wake = [weak = Weak(this)] {
    if (const auto self = weak.lock()) self->AskLater();
  };
  {
    absl::MutexLock lock(&mutex_);
    asking_ = true;
  }
  Ask();
  return absl::OkStatus();
}

// Asks the store again on the pool, because AskLater runs on the thread of a publisher, or of
// another lease that ends.
void LeaseCall::AskLater() {
  {
    absl::MutexLock lock(&mutex_);
    if (ended()) return;
    if (std::exchange(asking_, true)) {
      ask_again_ = true;
      return;
    }
  }
  const auto ask = [self = Shared(this)] { self->Ask(); };
  if (service_->lookups()->Submit(share_name_, request_bytes_, ask).ok()) return;
  Take(ClaimDecision());  // too many lookups wait: the caller computes without a lease
}

void LeaseCall::Ask() {
  ClaimDecision before;  // released after the lock
  {
    absl::MutexLock lock(&mutex_);
    assert(asking_);
    before = std::exchange(turn_, ClaimDecision());
    if (ended()) return;
    ask_.waited_for = before.boundary;
    ask_again_ = false;
    ++round_;
  }
  before.ticket.reset();
  // In a drain no caller waits, because OnDrain has ended the leases of the others.
  if (service_->admission()->closed()) return Take(ClaimDecision());
  absl::StatusOr<ClaimDecision> turn = service_->store()->Claim(query_, ask_);
  if (!turn.ok()) return Stop(turn.status());
  Take(*std::move(turn));
}

void LeaseCall::Take(ClaimDecision turn) {
  // `turn` holds the previous decision from the swap on. It is released after the lock, because
  // releasing it wakes other calls.
  bool again = false;
  {
    absl::MutexLock lock(&mutex_);
    assert(asking_);  // only one thread at a time asks the store
    asking_ = false;
    if (ended()) return;
    std::swap(turn_, turn);
    again = turn_.role == ClaimRole::kWait && ask_again_;
    assert((turn_.role == ClaimRole::kNone) == (turn_.ticket.use_count() == 0));
    if (turn_.role != ClaimRole::kWait || !std::exchange(waited_, true)) Answer();
    if (turn_.role == ClaimRole::kNone) EndLocked(absl::OkStatus());
    if (!ended() && !again) SetAlarm(turn_.until);
    WriteNext();
  }
  if (again) AskLater();
}

void LeaseCall::Answer() {
  mutex_.AssertHeld();
  if (!std::exchange(answered_, true)) call()->StopClock();  // the call may last long from now on
  v1::LeaseResponse response;
  response.set_boundary(turn_.boundary);
  response.set_usable_tokens(turn_.usable_tokens);
  response.set_matched_tokens(turn_.matched_tokens);
  if (turn_.role == ClaimRole::kWait) {
    response.set_turn(v1::LeaseResponse::WAIT);
    response.set_deadline_ms(MsUntil(ask_.wait_until));
  } else if (turn_.role == ClaimRole::kCompute) {
    response.set_turn(v1::LeaseResponse::COMPUTE);
    response.set_deadline_ms(MsUntil(turn_.until));
  }
  PushLocked(MessageBytes(response));
}

void LeaseCall::SetAlarm(absl::Time when) {
  mutex_.AssertHeld();
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(absl::ToChronoTime(when), [weak = Weak(this), round = round_](bool rang) {
    const auto self = rang ? weak.lock() : nullptr;
    if (self != nullptr) self->OnAlarm(round);
  });
}

// Called when the lease has expired, or when the awaited prefix is late.
void LeaseCall::OnAlarm(uint64_t round) {
  bool computing = false;
  {
    absl::MutexLock lock(&mutex_);
    if (ended() || round != round_) return;
    computing = turn_.role == ClaimRole::kCompute;
  }
  if (computing) return Stop(absl::OkStatus());
  AskLater();
}

// In a drain, callers that wait must compute themselves, and leases end.
void LeaseCall::OnDrain(const absl::Status&) {
  {
    absl::MutexLock lock(&mutex_);
    if (turn_.role != ClaimRole::kCompute) PushLocked(MessageBytes(v1::LeaseResponse()));
  }
  Stop(absl::OkStatus());
}

void LeaseCall::Stop(absl::Status status) {
  stopped_ = true;
  ClaimDecision turn;  // released after the lock
  absl::MutexLock lock(&mutex_);
  std::swap(turn_, turn);
  EndLocked(std::move(status));
  WriteNext();
}

}  // namespace

ByteStream* StartLease(CacheService* service, grpc::CallbackServerContext* context,
                       const grpc::ByteBuffer* request) {
  const auto call = std::make_shared<LeaseCall>(service, context);
  call->Start(TakeRequest(request));
  return call.get();
}

}  // namespace hearth
