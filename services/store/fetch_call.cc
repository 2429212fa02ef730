#include "services/store/fetch_call.h"

#include <grpcpp/alarm.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/cache_store.pb.h"
#include "proto/caller_gone.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/slice_wire.h"
#include "services/rpc/status_conversion.h"
#include "services/serving/calls/enter_call.h"
#include "services/store/fetch_share.h"
#include "services/store/slice_stream.h"
#include "services/store/store_conversion.h"

namespace hearth {
namespace {

// One message waits while another is written.
constexpr size_t kReadAhead = 1;

class FetchCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                        public std::enable_shared_from_this<FetchCall> {
 public:
  FetchCall(Executor* readers, const SharedMemoryOffer* offer, grpc::CallbackServerContext* context)
      : readers_(readers), offer_(offer), context_(context) {}

  void Start(TieredStore* store, CallGate* gate, Identities* identities, FairPool* lookups,
             StreamPlaces* places, const grpc::ByteBuffer& request);
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  // An alarm's thread may hold the last reference, when the service is gone: nothing of it is left.
  void OnDone() override {
    place_.reset();
    call_.reset();
    session_.reset();
    closing_.reset();  // waits for a run in progress
    self_.reset();
  }

 private:
  void LookUp(TieredStore* store, const Identity& caller, const grpc::ByteBuffer& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Plan(TieredStore* store, const Identity& caller, const grpc::ByteBuffer& request,
                    v1::FetchResponse* message);
  void ReadNext() ABSL_LOCKS_EXCLUDED(mutex_);
  void Read() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<grpc::ByteBuffer> ReadPiece();
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndLease() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetAlarm(grpc::Alarm* alarm, absl::Duration after, std::function<void()> ring);
  void LosePlace(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnLeaseOver() ABSL_LOCKS_EXCLUDED(mutex_);
  void CancelWrite() ABSL_LOCKS_EXCLUDED(mutex_);
  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !ended_ && !all_read_ && ready_.size() <= kReadAhead;
  }

  Executor* const readers_;
  const SharedMemoryOffer* const offer_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<FetchCall> self_;             // held for gRPC
  std::unique_ptr<CallGate::Call> call_;        // null when the gate is closed
  std::unique_ptr<StreamPlaces::Place> place_;  // among the open streams; null: refused
  std::shared_ptr<void> closing_;
  std::unique_ptr<FetchSession> session_;
  bool from_disk_ = false;

  bool shares_ = false, reader_verifies_ = false;  // set by the lookup

  // Whoever set reading_ uses these.
  std::vector<SliceRef> order_;
  size_t slice_index_ = 0;
  SliceView slice_;  // order_[slice_index_], once read
  uint64_t offset_ = 0;

  absl::Mutex mutex_;
  std::deque<grpc::ByteBuffer> ready_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer current_;                      // read by gRPC while writing_
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;  // or looking up
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelling_ ABSL_GUARDED_BY(mutex_) = false;
  bool all_read_ ABSL_GUARDED_BY(mutex_) = false;
  bool leasing_ ABSL_GUARDED_BY(mutex_) = false;  // all is sent, what was shared is held
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  grpc::Alarm lease_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<FetchSession>> OpenSession(TieredStore* store,
                                                          const v1::FetchRequest& request,
                                                          const Identity& caller,
                                                          std::function<bool()> stopped) {
  if (request.what_case() == v1::FetchRequest::kRestorePointId) {
    absl::StatusOr<Digest> id = IdFromProto(request.restore_point_id());
    if (!id.ok()) return id.status();
    absl::StatusOr<std::string> tenant = caller.TenantOf(request.tenant());
    if (!tenant.ok()) return tenant.status();
    return store->FetchById(*id, *tenant);
  }
  absl::StatusOr<PrefixQuery> query = QueryFromProto(request.prefix(), caller);
  if (!query.ok()) return query.status();
  ObserveFields(store, request.prefix(), query->tenant);
  query->again = request.again();
  query->stopped = std::move(stopped);
  return store->Fetch(*query, request.above_tokens(), request.max_tokens());
}

void NotePlan(const v1::FetchRequest& request, const LookupPlan& plan, CallNote* note) {
  const std::string& tenant = request.has_prefix() ? request.prefix().tenant() : request.tenant();
  if (!tenant.empty()) note->tenant = tenant;
  note->tokens = request.prefix().token_ids_size();
  note->hit_tokens = plan.usable_tokens;
  note->tier = TierName(plan.slowest_tier);
}

void FetchCall::Start(TieredStore* store, CallGate* gate, Identities* identities, FairPool* lookups,
                      StreamPlaces* places, const grpc::ByteBuffer& request) {
  self_ = shared_from_this();
  const absl::StatusOr<Identity> caller = CallerOf(identities, *context_);
  call_ = EnterCall(gate, caller, "Fetch", *context_, request.Length());
  if (call_ == nullptr) return End(CallGate::ClosedError());
  closing_ = gate->OnClose([this] { EndLease(); });
  if (!caller.ok()) return End(caller.status());
  auto place = places->Enter(*caller, [weak = weak_from_this()](const absl::Status& why) {
    if (const auto self = weak.lock()) self->LosePlace(why);
  });
  if (!place.ok()) return End(place.status());
  place_ = *std::move(place);
  place_->WaitsForCaller(false);
  {
    absl::MutexLock lock(&mutex_);
    reading_ = true;
  }
  const auto look_up = [self = shared_from_this(), store, caller = *caller, request] {
    self->LookUp(store, caller, request);
  };
  const absl::Status accepted =
      lookups->SubmitRequest(caller->ShareName(), request.Length(), look_up);
  if (accepted.ok()) return;
  absl::MutexLock lock(&mutex_);
  reading_ = false;
  EndLocked(accepted);
  WriteNext();
}

// On the pool.
void FetchCall::LookUp(TieredStore* store, const Identity& caller,
                       const grpc::ByteBuffer& request) {
  v1::FetchResponse message;
  const absl::Status planned = Plan(store, caller, request, &message);
  {
    absl::MutexLock lock(&mutex_);
    reading_ = false;
    if (!planned.ok()) EndLocked(planned);
    if (!ended_) {
      all_read_ = order_.empty();
      ready_.push_back(MessageBytes(message));
      if (shares_) SetAlarm(&lease_, offer_->lease, [this] { OnLeaseOver(); });
    }
    WriteNext();
  }
  ReadNext();
}

absl::Status FetchCall::Plan(TieredStore* store, const Identity& caller,
                             const grpc::ByteBuffer& request, v1::FetchResponse* message) {
  v1::FetchRequest parsed;
  if (absl::Status status = ParseAwaited(*context_, request, &parsed); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<FetchSession>> session =
      OpenSession(store, parsed, caller, [this] { return context_->IsCancelled(); });
  if (!session.ok()) return session.status();
  session_ = *std::move(session);
  const LookupPlan& plan = session_->plan();
  NotePlan(parsed, plan, call_->note());
  PlanToProto(plan, message->mutable_plan());
  if (plan.usable_tokens > 0) order_ = SliceOrder(plan);
  // The memory holds what every tenant stored.
  if (caller.sees_all()) {
    shares_ = ShareWhatIsAsked(*offer_, parsed, session_.get(), &order_, message->mutable_plan());
  }
  from_disk_ = plan.slowest_tier == Tier::kDisk;
  reader_verifies_ = parsed.verifies();
  return absl::OkStatus();
}

// `ring` runs while the call is there.
void FetchCall::SetAlarm(grpc::Alarm* alarm, absl::Duration after, std::function<void()> ring) {
  // Not a shared pointer: the alarm is this call's own. A cancelled one may come when all is over.
  alarm->Set(absl::ToChronoTime(absl::Now() + after),
             [weak = weak_from_this(), ring = std::move(ring)](bool rang) {
               const auto self = rang ? weak.lock() : nullptr;
               if (self != nullptr) ring();
             });
}

// Its caller hardly takes anything: what it was promised goes to others.
void FetchCall::LosePlace(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    EndLocked(why);
  }
  CancelWrite();
}

// From the moment on when ranges were handed out, whatever is still to be sent.
void FetchCall::OnLeaseOver() {
  {
    absl::MutexLock lock(&mutex_);
    if (all_read_ && ready_.empty()) {
      EndLocked(absl::OkStatus());
      return WriteNext();
    }
    EndLocked(absl::DeadlineExceededError(
        absl::StrCat("fetch: not all was sent when the lease on shared memory was over, after ",
                     absl::FormatDuration(offer_->lease))));
  }
  CancelWrite();
}

// Ends a write that may never end by itself.
void FetchCall::CancelWrite() {
  {
    absl::MutexLock lock(&mutex_);
    if (finished_ || cancelling_) return;
    cancelling_ = writing_;
    if (!cancelling_) return WriteNext();
  }
  context_->TryCancel();  // the call is there: it does not finish while cancelling_
  absl::MutexLock lock(&mutex_);
  cancelling_ = false;
  WriteNext();
}

// How a caller says that it has copied what was shared, and how one that dies is noticed.
void FetchCall::OnCancel() {
  absl::MutexLock lock(&mutex_);
  EndLocked(leasing_ ? absl::OkStatus() : CallerGone());
  WriteNext();
}

// Draining: whoever copies notices when the memory is used again.
void FetchCall::EndLease() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  if (!leasing_) return;  // nor will it: its caller may have all, and we not know it yet
  EndLocked(absl::OkStatus());
  WriteNext();
}

void FetchCall::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (place_ != nullptr) {
      place_->WaitsForCaller(false);
      if (ok) place_->Moved(current_.Length());
    }
    if (!ok) EndLocked(CallerGone());
    WriteNext();
  }
  ReadNext();
}

// Gets the next message ready, here or on the executor.
void FetchCall::ReadNext() {
  {
    absl::MutexLock lock(&mutex_);
    if (reading_ || !MayRead()) return;
    reading_ = true;
  }
  if (!from_disk_) return Read();
  if (readers_->TrySchedule(0, [self = shared_from_this()] { self->Read(); })) return;
  absl::MutexLock lock(&mutex_);
  reading_ = false;
  EndLocked(absl::ResourceExhaustedError("too many fetches wait for the disk; try again later"));
  WriteNext();
}

void FetchCall::Read() {
  for (;;) {
    absl::StatusOr<grpc::ByteBuffer> message = ReadPiece();
    absl::MutexLock lock(&mutex_);
    if (!message.ok()) {
      EndLocked(message.status());
    } else if (!ended_) {
      ready_.push_back(*std::move(message));
    }
    all_read_ = slice_index_ == order_.size();
    const bool more = MayRead();
    if (!more) reading_ = false;
    WriteNext();
    if (!more) return;
  }
}

absl::StatusOr<grpc::ByteBuffer> FetchCall::ReadPiece() {
  const SliceRef& ref = order_[slice_index_];
  if (slice_.owner == nullptr) {
    std::optional<SliceView> unverified;
    if (reader_verifies_) unverified = session_->PeekSlice(ref.object, ref.layer);
    if (unverified.has_value()) {
      slice_ = *std::move(unverified);
    } else {
      absl::StatusOr<SliceView> view = session_->ReadSlice(ref.object, ref.layer);
      if (!view.ok()) return view.status();
      slice_ = *std::move(view);
    }
    offset_ = 0;
  }
  const auto piece = slice_.bytes.subspan(offset_, kMaxSlicePieceBytes);
  grpc::ByteBuffer message = SliceMessage({ref.object, ref.layer, offset_}, slice_.owner, piece);
  offset_ += piece.size();
  if (offset_ == slice_.bytes.size()) {
    slice_ = SliceView();
    ++slice_index_;
  }
  return message;
}

void FetchCall::End(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  EndLocked(std::move(status));
  WriteNext();
}

void FetchCall::EndLocked(absl::Status status) {
  if (ended_) return;
  ended_ = true;
  status_ = std::move(status);
  ready_.clear();
}

// gRPC allows one write at a time, and Finish once, after it.
void FetchCall::WriteNext() {
  if (writing_ || cancelling_ || finished_) return;
  if (!ready_.empty()) {
    current_ = std::move(ready_.front());
    ready_.pop_front();
    writing_ = true;
    if (place_ != nullptr) place_->WaitsForCaller(true);
    StartWrite(&current_);
    return;
  }
  if (reading_ || !(ended_ || all_read_)) return;
  if (shares_ && !ended_ && !draining_) {
    if (!std::exchange(leasing_, true)) call_->StopClock();
    return;
  }
  lease_.Cancel();
  finished_ = true;
  current_.Clear();
  session_.reset();  // what was promised may go now
  const absl::Status status = call_ == nullptr ? status_ : call_->Finish(status_);
  Finish(ToGrpcStatus(status, context_));
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartFetch(
    TieredStore* store, CallGate* gate, Identities* identities, FairPool* lookups,
    Executor* readers, const SharedMemoryOffer* offer, StreamPlaces* places,
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const auto call = std::make_shared<FetchCall>(readers, offer, context);
  call->Start(store, gate, identities, lookups, places, TakeRequest(request));
  return call.get();
}

}  // namespace hearth
