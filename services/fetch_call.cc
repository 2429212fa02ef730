#include "services/fetch_call.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/cache_store.pb.h"
#include "services/proto_conversion.h"
#include "services/slice_stream.h"
#include "services/slice_wire.h"
#include "services/status_conversion.h"
#include "services/store_conversion.h"

namespace hearth {
namespace {

// One message waits while another is written.
constexpr size_t kReadAhead = 1;

class FetchCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                        public std::enable_shared_from_this<FetchCall> {
 public:
  FetchCall(Executor* readers, const SharedMemoryOffer* offer, grpc::CallbackServerContext* context)
      : readers_(readers), offer_(offer), context_(context) {}

  void Start(TieredStore* store, CallGate* gate, Identities* identities, StreamLimit* streams,
             const grpc::ByteBuffer& request);
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
  void Share(const v1::FetchRequest& request, v1::FetchPlan* plan);
  void ShareOnDevice(const v1::FetchRequest& request, v1::FetchPlan* plan);
  void ReadNext() ABSL_LOCKS_EXCLUDED(mutex_);
  void Read() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<grpc::ByteBuffer> ReadPiece();
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndLease() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !ended_ && !all_read_ && ready_.size() <= kReadAhead;
  }

  Executor* const readers_;
  const SharedMemoryOffer* const offer_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<FetchCall> self_;       // held for gRPC
  std::unique_ptr<CallGate::Call> call_;  // null when the gate is closed
  std::shared_ptr<void> place_;           // among the open streams
  std::shared_ptr<void> closing_;
  std::unique_ptr<FetchSession> session_;
  bool from_disk_ = false;

  bool shares_ = false, reader_verifies_ = false;  // set in Start
  grpc::Alarm lease_;

  // Whoever set reading_ uses these.
  std::vector<SliceRef> order_;
  size_t slice_index_ = 0;
  SliceView slice_;  // order_[slice_index_], once read
  uint64_t offset_ = 0;

  absl::Mutex mutex_;
  std::deque<grpc::ByteBuffer> ready_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer current_;  // read by gRPC while writing_
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool all_read_ ABSL_GUARDED_BY(mutex_) = false;
  bool leasing_ ABSL_GUARDED_BY(mutex_) = false;  // all is sent, what was shared is held
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<FetchSession>> OpenSession(TieredStore* store,
                                                          const v1::FetchRequest& request,
                                                          const Identity& caller) {
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
  return store->Fetch(*query, request.above_tokens(), request.max_tokens());
}

void FetchCall::Start(TieredStore* store, CallGate* gate, Identities* identities,
                      StreamLimit* streams, const grpc::ByteBuffer& request) {
  self_ = shared_from_this();
  call_ = gate->Enter("Fetch");
  if (call_ == nullptr) return End(CallGate::ClosedError());
  closing_ = gate->OnClose([this] { EndLease(); });
  const absl::StatusOr<Identity> caller = CallerOf(identities, *context_);
  if (!caller.ok()) return End(caller.status());
  absl::StatusOr<std::shared_ptr<void>> place = streams->Enter(*caller);
  if (!place.ok()) return End(place.status());
  place_ = *std::move(place);
  v1::FetchRequest parsed;
  if (absl::Status status = ParseMessage(request, &parsed); !status.ok()) return End(status);
  absl::StatusOr<std::unique_ptr<FetchSession>> session = OpenSession(store, parsed, *caller);
  if (!session.ok()) return End(session.status());
  session_ = *std::move(session);
  const LookupPlan& plan = session_->plan();
  v1::FetchResponse message;
  PlanToProto(plan, message.mutable_plan());
  if (plan.usable_tokens > 0) order_ = SliceOrder(plan);
  // The memory holds what every tenant stored.
  if (caller->sees_all()) {
    if (parsed.has_device_segment_id()) ShareOnDevice(parsed, message.mutable_plan());
    if (parsed.has_segment_id()) Share(parsed, message.mutable_plan());
  }
  from_disk_ = plan.slowest_tier == Tier::kDisk;
  reader_verifies_ = parsed.verifies();
  {
    absl::MutexLock lock(&mutex_);
    all_read_ = order_.empty();
    ready_.push_back(MessageBytes(message));
    WriteNext();
  }
  ReadNext();
}

// Moves what lies in the shared memory from the stream into the plan.
void FetchCall::Share(const v1::FetchRequest& request, v1::FetchPlan* plan) {
  if (offer_->socket.empty()) return;
  const std::string id(offer_->id.begin(), offer_->id.end());
  if (request.segment_id() != id) {
    plan->mutable_segment()->set_id(id);
    plan->mutable_segment()->set_socket(offer_->socket);
    return;
  }
  v1::SharedSlices* shared = plan->mutable_shared();
  std::vector<SliceRef> streamed;
  for (const SliceRef& slice : order_) {
    const std::optional<SegmentRange> range = session_->ShareSlice(slice.object, slice.layer);
    if (!range.has_value()) {
      streamed.push_back(slice);
      continue;
    }
    shared->add_objects(slice.object);
    shared->add_layers(slice.layer);
    shared->add_offsets(range->offset);
    shared->add_generations(range->generation);
  }
  shares_ |= shared->objects_size() > 0;
  shared->set_lease_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(offer_->lease)));
  order_ = std::move(streamed);
}

// Moves the objects that have copies in the gpu tier out of the stream, but for remainders: what
// follows one is begun with its bytes in the caller's RAM.
void FetchCall::ShareOnDevice(const v1::FetchRequest& request, v1::FetchPlan* plan) {
  if (offer_->device_socket.empty()) return;
  const std::string id(offer_->device_id.begin(), offer_->device_id.end());
  if (request.device_segment_id() != id) {
    plan->mutable_device_segment()->set_id(id);
    plan->mutable_device_segment()->set_socket(offer_->device_socket);
    return;
  }
  const LookupPlan& stored = session_->plan();
  std::vector<bool> streamed(stored.objects.size(), true);
  v1::SharedSlices* device = plan->mutable_device();
  for (uint32_t i = 0; i < stored.objects.size(); ++i) {
    const std::optional<SegmentRange> range = session_->ShareOnDevice(i);
    if (!range.has_value()) continue;
    device->add_objects(i);
    device->add_offsets(range->offset);
    device->add_generations(range->generation);
    streamed[i] = stored.objects[i].id.tokens < stored.layout.chunk_tokens;
  }
  shares_ |= device->objects_size() > 0;
  order_.erase(std::remove_if(order_.begin(), order_.end(),
                              [&](const SliceRef& slice) { return !streamed[slice.object]; }),
               order_.end());
}

// How a caller says that it has copied what was shared, and how one that dies is noticed.
void FetchCall::OnCancel() {
  absl::MutexLock lock(&mutex_);
  EndLocked(leasing_ ? absl::OkStatus() : absl::CancelledError("the caller went away"));
  WriteNext();
}

// Draining: whoever copies notices when the memory is used again.
void FetchCall::EndLease() {
  absl::MutexLock lock(&mutex_);
  if (!leasing_) return;
  EndLocked(absl::OkStatus());
  WriteNext();
}

void FetchCall::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) EndLocked(absl::CancelledError("the caller went away"));
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
  if (writing_ || finished_) return;
  if (!ready_.empty()) {
    current_ = std::move(ready_.front());
    ready_.pop_front();
    writing_ = true;
    StartWrite(&current_);
    return;
  }
  if (reading_ || !(ended_ || all_read_)) return;
  if (shares_ && !ended_) {
    if (std::exchange(leasing_, true)) return;
    call_->StopClock();
    // Not a shared pointer: the alarm is this call's own.
    lease_.Set(absl::ToChronoTime(absl::Now() + offer_->lease),
               [weak = weak_from_this()](bool rang) {
                 const auto self = rang ? weak.lock() : nullptr;
                 if (self != nullptr) self->End(absl::OkStatus());
               });
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

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartFetch(TieredStore* store, CallGate* gate,
                                                       Identities* identities, Executor* readers,
                                                       const SharedMemoryOffer* offer,
                                                       StreamLimit* streams,
                                                       grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer& request) {
  const auto call = std::make_shared<FetchCall>(readers, offer, context);
  call->Start(store, gate, identities, streams, request);
  return call.get();
}

}  // namespace hearth
