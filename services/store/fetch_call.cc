#include <grpcpp/alarm.h>

#include <algorithm>
#include <cassert>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/cache_store.pb.h"
#include "proto/caller_gone.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/slice_wire.h"
#include "services/serving/calls/stream_call.h"
#include "services/store/cache_service.h"
#include "services/store/slice_stream.h"
#include "services/store/store_calls.h"
#include "services/store/store_conversion.h"

namespace hearth {
namespace {

// The next message is read only while at most this many messages wait to be written.
constexpr size_t kReadAhead = 1;

// FetchCall: one Fetch stream of the store, from the plan to the last slice. It copies no bytes.
//
// The lookup runs on a pool. The messages point into the tier's own memory. While one message is
// being sent, the next message is read and verified. Reads from disk run on an executor, so that no
// thread of gRPC blocks. Invariants: (1) at most one write and one read are in progress, so at most
// kReadAhead + 2 slices are held: the slice that is written, those that wait, and the slice that is
// read; (2) pieces are sent in the order of SliceOrder; (3) shared memory is held until the caller
// cancels, leaves, or its lease expires; the lease begins when the ranges are given; (4) a call
// whose caller does not keep its pace (admission.h) is cancelled.
class FetchCall final : public StreamCall {
 public:
  FetchCall(CacheService* service, grpc::CallbackServerContext* context)
      : StreamCall(context), service_(service) {}

  void Start(const grpc::ByteBuffer& request);
  void OnWriteDone(bool ok) override;

 private:
  enum class Stage {
    kReading,  // a lookup or a read is in progress, and holds the call
    kPaused,   // more than kReadAhead messages wait, so reading pauses
    kAllRead,
    kLeasing,  // everything was sent; the caller still reads shared memory
  };

  void OnGone() override;
  void OnDrain(const absl::Status&) override;
  bool TakeNext(grpc::ByteBuffer* message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeforeFinish() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void LookUp(const Identity& caller, const grpc::ByteBuffer& request) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Plan(const Identity& caller, const grpc::ByteBuffer& request,
                    v1::FetchResponse* message);
  void ReadNext() ABSL_LOCKS_EXCLUDED(mutex_);
  void Read() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<grpc::ByteBuffer> ReadPiece();
  void SetAlarm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnLeaseExpired() ABSL_LOCKS_EXCLUDED(mutex_);

  CacheService* const service_;
  std::unique_ptr<FetchSession> session_;
  // Set by the lookup.
  bool from_disk_ = false, shares_ = false, reader_verifies_ = false;

  // Used only in stage kReading.
  std::vector<SliceRef> order_;
  size_t slice_index_ = 0;
  SliceView slice_;  // the slice that is being sent: order_[slice_index_]
  uint64_t offset_ = 0;

  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kReading;
  grpc::Alarm lease_ ABSL_GUARDED_BY(mutex_);
};

// Returns true if the caller has mapped the shared memory `id`. Otherwise returns false, and offers
// the memory in the plan if it has a socket.
bool IsMapped(const SegmentId& id, const std::string& socket, const std::string& mapped,
              absl::FunctionRef<v1::SharedSegment*()> offer) {
  if (socket.empty()) return false;
  const std::string bytes(id.begin(), id.end());
  if (mapped == bytes) return true;
  v1::SharedSegment* segment = offer();
  segment->set_id(bytes);
  segment->set_socket(socket);
  return false;
}

// Removes the slices that are in shared memory from `order`, so that they are not streamed, and
// adds their ranges to the plan.
void Share(const SharedMemoryOffer& offer, FetchSession* session, std::vector<SliceRef>* order,
           v1::FetchPlan* plan) {
  v1::SharedSlices* shared = plan->mutable_shared();
  std::vector<SliceRef> streamed;
  for (const SliceRef& slice : *order) {
    const std::optional<SegmentRange> range = session->ShareSlice(slice.object, slice.layer);
    if (!range.has_value()) {
      streamed.push_back(slice);
      continue;
    }
    shared->add_objects(slice.object);
    shared->add_layers(slice.layer);
    shared->add_offsets(range->offset);
    shared->add_generations(range->generation);
  }
  shared->set_lease_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(offer.lease)));
  assert(static_cast<size_t>(shared->objects_size()) + streamed.size() == order->size());
  *order = std::move(streamed);
}

// Removes objects with a copy in the gpu tier from `order`, so that they are not streamed, and adds
// their ranges to the plan. A remainder is streamed too, because the caller needs its bytes in RAM
// to continue.
void ShareOnDevice(FetchSession* session, std::vector<SliceRef>* order, v1::FetchPlan* plan) {
  const LookupPlan& stored = session->plan();
  std::vector<bool> streamed(stored.objects.size(), true);
  v1::SharedSlices* device = plan->mutable_device();
  for (uint32_t i = 0; i < stored.objects.size(); ++i) {
    const std::optional<SegmentRange> range = session->ShareOnDevice(i);
    if (!range.has_value()) continue;
    device->add_objects(i);
    device->add_offsets(range->offset);
    device->add_generations(range->generation);
    streamed[i] = stored.objects[i].id.tokens < stored.layout.chunk_tokens;
  }
  order->erase(std::remove_if(order->begin(), order->end(),
                              [&](const SliceRef& slice) { return !streamed[slice.object]; }),
               order->end());
}

// Moves slices in memory that the caller has mapped from `order` to `plan`, so that they are not
// streamed. If the caller has not mapped the memory, offers it. Returns true if ranges were given;
// they are valid until the session ends.
bool ShareMapped(const SharedMemoryOffer& offer, const v1::FetchRequest& request,
                 FetchSession* session, std::vector<SliceRef>* order, v1::FetchPlan* plan) {
  if (request.has_device_segment_id() &&
      IsMapped(offer.device_id, offer.device_socket, request.device_segment_id(),
               [plan] { return plan->mutable_device_segment(); })) {
    ShareOnDevice(session, order, plan);
  }
  if (request.has_segment_id() && IsMapped(offer.id, offer.socket, request.segment_id(),
                                           [plan] { return plan->mutable_segment(); })) {
    Share(offer, session, order, plan);
  }
  return plan->shared().objects_size() > 0 || plan->device().objects_size() > 0;
}

absl::StatusOr<std::unique_ptr<FetchSession>> OpenSession(StoreReader* store,
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
  query->token_ns = request.token_ns();
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

void FetchCall::Start(const grpc::ByteBuffer& request) {
  const absl::StatusOr<Identity> caller = Enter(service_->admission(), "Fetch", request.Length());
  if (!caller.ok()) return End(caller.status());
  const absl::Status placed = call()->TakePlace(kFetchLimit, *caller);
  if (!placed.ok()) return End(placed);
  Delegate([&] {
    return service_->lookups()->SubmitRequest(
        caller->ShareName(), request.Length(),
        [self = Shared(this), caller = *caller, request] { self->LookUp(caller, request); });
  });
}

// Runs on the pool.
void FetchCall::LookUp(const Identity& caller, const grpc::ByteBuffer& request) {
  v1::FetchResponse message;
  const absl::Status planned = Plan(caller, request, &message);
  {
    absl::MutexLock lock(&mutex_);
    assert(stage_ == Stage::kReading);
    stage_ = order_.empty() ? Stage::kAllRead : Stage::kPaused;
    if (!planned.ok()) AbortLocked(planned);
    PushLocked(MessageBytes(message));
    if (shares_ && !ended()) SetAlarm();
    Release();
  }
  ReadNext();
}

absl::Status FetchCall::Plan(const Identity& caller, const grpc::ByteBuffer& request,
                             v1::FetchResponse* message) {
  v1::FetchRequest parsed;
  if (absl::Status status = ParseAwaited(*context_, request, &parsed); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<FetchSession>> session =
      OpenSession(service_->store(), parsed, caller, [this] { return context_->IsCancelled(); });
  if (!session.ok()) return session.status();
  session_ = *std::move(session);
  const LookupPlan& plan = session_->plan();
  NotePlan(parsed, plan, call()->note());
  if (plan.usable_tokens > 0) {
    service_->fleet()->NoteWords(caller, plan.fingerprint.digest(), plan.token_ids,
                                 parsed.first_words());
  }
  PlanToProto(plan, message->mutable_plan());
  if (plan.usable_tokens > 0) order_ = SliceOrder(plan);
  // Only trusted callers may map the shared memory, because it holds data of every tenant.
  if (caller.sees_all()) {
    shares_ =
        ShareMapped(service_->offer(), parsed, session_.get(), &order_, message->mutable_plan());
  }
  from_disk_ = std::any_of(plan.objects.begin(), plan.objects.end(),
                           [](const auto& object) { return object.tier == Tier::kDisk; });
  reader_verifies_ = parsed.verifies();
  return absl::OkStatus();
}

// Begins the lease when ranges are given, even if slices are still to be sent.
void FetchCall::SetAlarm() {
  mutex_.AssertHeld();
  // The alarm may ring after the end of the call. It holds no shared pointer, because it is a
  // member of the call.
  lease_.Set(absl::ToChronoTime(absl::Now() + service_->offer().lease),
             [weak = Weak(this)](bool rang) {
               const auto self = rang ? weak.lock() : nullptr;
               if (self != nullptr) self->OnLeaseExpired();
             });
}

void FetchCall::OnLeaseExpired() {
  absl::MutexLock lock(&mutex_);
  if (stage_ >= Stage::kAllRead && ready() == 0 && !writing()) {
    EndLocked(absl::OkStatus());
  } else {
    AbortLocked(absl::DeadlineExceededError(absl::StrCat(
        "fetch: the lease on shared memory expired after ",
        absl::FormatDuration(service_->offer().lease), ", before all slices were sent")));
  }
  WriteNext();
}

// Called when the caller has copied the shared bytes, or has died.
void FetchCall::OnGone() {
  absl::MutexLock lock(&mutex_);
  AbortLocked(stage_ == Stage::kLeasing ? absl::OkStatus() : CallerGone());
  WriteNext();
}

// In a drain, ends the lease: a caller that still copies notices if the memory is reused. If slices
// are still to be sent, TakeNext ends the lease later.
void FetchCall::OnDrain(const absl::Status&) {
  absl::MutexLock lock(&mutex_);
  if (stage_ != Stage::kLeasing) return;
  EndLocked(absl::OkStatus());
  WriteNext();
}

bool FetchCall::TakeNext(grpc::ByteBuffer* message) {
  mutex_.AssertHeld();
  if (StreamCall::TakeNext(message)) return true;
  if (ended() || stage_ < Stage::kAllRead) return false;
  if (!shares_ || service_->admission()->closed()) {
    EndLocked(absl::OkStatus());
  } else if (std::exchange(stage_, Stage::kLeasing) != Stage::kLeasing) {
    call()->StopClock();
  }
  return false;
}

void FetchCall::BeforeFinish() {
  mutex_.AssertHeld();
  assert(ended());
  lease_.Cancel();
  slice_ = SliceView();
  session_.reset();  // releases the objects of the plan
}

void FetchCall::OnWriteDone(bool ok) {
  StreamCall::OnWriteDone(ok);
  ReadNext();
}

// Prepares the next message, on this thread or, for a read from disk, on the executor.
void FetchCall::ReadNext() {
  {
    absl::MutexLock lock(&mutex_);
    if (stage_ != Stage::kPaused || ended() || ready() > kReadAhead) return;
    stage_ = Stage::kReading;
    Hold();
  }
  if (!from_disk_) return Read();
  const bool is_taken =
      service_->readers()->TrySchedule(0, [self = Shared(this)] { self->Read(); });
  assert(is_taken);  // cannot fail: the queue is longer than the limit of fetches
}

void FetchCall::Read() {
  for (;;) {
    absl::StatusOr<grpc::ByteBuffer> message = ReadPiece();
    absl::MutexLock lock(&mutex_);
    if (message.ok()) {
      PushLocked(*std::move(message));
    } else {
      AbortLocked(message.status());
    }
    // One read is in progress, and holds only its own slice.
    assert(stage_ == Stage::kReading && ready() <= kReadAhead + 1);
    const bool all = slice_index_ == order_.size();
    if (all || ended() || ready() > kReadAhead) {
      stage_ = all ? Stage::kAllRead : Stage::kPaused;
      return Release();
    }
    WriteNext();
  }
}

absl::StatusOr<grpc::ByteBuffer> FetchCall::ReadPiece() {
  assert(slice_index_ < order_.size());
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
  assert(!piece.empty());  // an empty piece would be sent again and again
  offset_ += piece.size();
  if (offset_ == slice_.bytes.size()) {
    slice_ = SliceView();
    ++slice_index_;
  }
  return message;
}

}  // namespace

ByteStream* StartFetch(CacheService* service, grpc::CallbackServerContext* context,
                       const grpc::ByteBuffer* request) {
  const auto call = std::make_shared<FetchCall>(service, context);
  call->Start(TakeRequest(request));
  return call.get();
}

}  // namespace hearth
