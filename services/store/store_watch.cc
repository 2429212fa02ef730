#include <cassert>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "services/rpc/slice_wire.h"
#include "services/serving/calls/stream_call.h"
#include "services/store/cache_service.h"
#include "services/store/store_conversion.h"

namespace hearth {
namespace {

// Reads the chunks of one restore point at a time. Each read returns the chunks that exist at that
// moment.
class ChunkReader {
 public:
  ChunkReader(StoreAdmin* store, std::string tenant) : store_(store), tenant_(std::move(tenant)) {}

  // Starts with the restore point of `event`, and adds its first chunks to `event`.
  void Begin(v1::WatchEvent* event) {
    id_.reset();
    if (event->kind() != v1::WatchEvent::STORED && event->kind() != v1::WatchEvent::SNAPSHOT) {
      return;
    }
    id_ = IdFromProto(event->restore_point().restore_point_id()).value();
    sequence_ = event->sequence();
    left_ = event->restore_point().tokens();
    next_chunk_ = 0;
    ReadInto(event);
  }
  // Puts the next chunks into an event. Returns false if all chunks were read, or if the restore
  // point is gone.
  bool NextPiece(v1::WatchEvent* event) {
    if (!id_.has_value() || !ReadInto(event)) return false;
    event->set_kind(v1::WatchEvent::CHUNKS);
    event->set_sequence(sequence_);
    return true;
  }

 private:
  bool ReadInto(v1::WatchEvent* event) {
    if (left_ == 0) return false;
    const std::optional<ChunkRun> run =
        store_->ChunksOf(*id_, tenant_, next_chunk_, kMaxWatchTokens);
    if (!run.has_value()) {
      id_.reset();
      return false;
    }
    ChunksToProto(*run, event->mutable_chunks());
    next_chunk_ += static_cast<uint32_t>(run->ids.size());
    assert(!run->ids.empty() && run->token_ids.size() <= left_);
    left_ -= static_cast<uint32_t>(run->token_ids.size());
    return true;
  }

  StoreAdmin* const store_;
  const std::string tenant_;
  std::optional<Digest> id_;  // restore point whose chunks are read
  uint64_t sequence_ = 0;
  uint32_t next_chunk_ = 0, left_ = 0;  // left_: tokens whose chunks were not read yet
};

// WatchCall: one Watch stream. It sends the stored restore points, then the store's events, to one
// caller.
//
// The snapshot is taken once, with its position in the events, and sent as fast as the caller reads
// (until then, some 300 bytes of memory for each restore point). Later events wait in a bounded
// queue. A caller that reads too slowly loses events and does not delay the store: one LOST event
// replaces the queue. Tokens are read from the store only when their event is sent, a piece at a
// time, so that waiting events stay small.
class WatchCall final : public StreamCall {
 public:
  using StreamCall::StreamCall;

  void Start(CacheService* service, const grpc::ByteBuffer& bytes) {
    const absl::StatusOr<Identity> caller = Enter(service->admission(), "Watch", bytes.Length());
    if (!caller.ok()) return End(caller.status());
    v1::WatchRequest request;
    if (absl::Status status = ParseSmallMessage(bytes, &request); !status.ok()) return End(status);
    const absl::StatusOr<std::string> tenant = caller->TenantOf(request.tenant());
    if (!tenant.ok()) return End(tenant.status());
    if (request.with_chunks() && !caller->ReadsPromptsOf(*tenant)) {
      return End(absl::PermissionDeniedError(absl::StrCat(
          "with_chunks: an administrator may not read the tokens of tenant \"", *tenant, "\"")));
    }
    const absl::Status placed = call()->TakePlace(kWatchLimit, *caller);
    if (!placed.ok()) return End(placed);
    Subscribe(service->store(), *tenant, request);
  }

 private:
  void OnDrain(const absl::Status& why) override { Abort(why); }
  void Subscribe(StoreAdmin* store, const std::string& tenant, const v1::WatchRequest& request) {
    if (request.with_chunks()) chunks_.emplace(ChunkReader{store, tenant});
    const WatchFrom from{request.incarnation(), request.since_sequence(), !request.no_snapshot()};
    WatchStart start = store->Subscribe(tenant, from, [this](const StoreEvent& event) {
      v1::WatchEvent message;
      EventToProto(event, &message);
      Add(std::move(message));
    });
    KeepUntilDone(std::move(start.subscription));
    absl::MutexLock lock(&mutex_);
    v1::WatchEvent first;
    first.set_kind(v1::WatchEvent::START);
    first.set_sequence(start.resumed ? from.sequence : start.sequence);
    first.set_resumed(start.resumed);
    opening_.push_back(std::move(first));
    for (const StoreEvent& missed : start.missed) {
      EventToProto(missed, &opening_.emplace_back());
    }
    incarnation_ = start.incarnation;
    snapshot_ = std::move(start.snapshot);
    snapshot_sequence_ = start.sequence;
    started_ = true;
    call()->StopClock();  // the stream may last for days
    WriteNext();
  }

  void Add(v1::WatchEvent event) {
    absl::MutexLock lock(&mutex_);
    if (ended()) return;
    if (queue_.size() >= kMaxWatchQueue) {
      const uint64_t sequence = event.sequence();
      event.Clear();
      event.set_kind(v1::WatchEvent::LOST);
      event.set_sequence(sequence);
      queue_.clear();
    }
    assert(queue_.size() < kMaxWatchQueue);
    queue_.push_back(std::move(event));
    WriteNext();
  }

  bool TakeNext(grpc::ByteBuffer* message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    mutex_.AssertHeld();
    v1::WatchEvent next;
    if (ended() || !started_ || !NextEvent(&next)) return false;
    next.set_incarnation(incarnation_);
    *message = MessageBytes(next);
    return true;
  }

  // Returns the next event to send: a change, or further chunks of the last change.
  bool NextEvent(v1::WatchEvent* next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    mutex_.AssertHeld();
    if (!chunks_.has_value()) return NextChange(next);
    if (chunks_->NextPiece(next)) return true;
    if (!NextChange(next)) return false;
    chunks_->Begin(next);
    return true;
  }

  // Returns the next change to send: the opening events, the snapshot, then later events.
  bool NextChange(v1::WatchEvent* next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    mutex_.AssertHeld();
    std::deque<v1::WatchEvent>& ready = opening_.empty() && snapshot_ended_ ? queue_ : opening_;
    if (!ready.empty()) {
      *next = std::move(ready.front());
      ready.pop_front();
      return true;
    }
    if (snapshot_ended_) return false;
    assert(opening_.empty() && started_);
    next->set_sequence(snapshot_sequence_);
    if (snapshot_.empty()) {
      snapshot_ended_ = true;
      next->set_kind(v1::WatchEvent::SNAPSHOT_END);
      return true;
    }
    next->set_kind(v1::WatchEvent::SNAPSHOT);
    RestorePointToProto(snapshot_.back(), next->mutable_restore_point());
    snapshot_.pop_back();  // the snapshot's end has the most recently used point
    return true;
  }

  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<ChunkReader> chunks_ ABSL_GUARDED_BY(mutex_);
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  // START, and the events that a resuming caller missed
  std::deque<v1::WatchEvent> opening_ ABSL_GUARDED_BY(mutex_);
  std::vector<RestorePoint> snapshot_ ABSL_GUARDED_BY(mutex_);  // restore points not sent yet
  uint64_t snapshot_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  bool snapshot_ended_ ABSL_GUARDED_BY(mutex_) = false;
  // later events, sent after the snapshot
  std::deque<v1::WatchEvent> queue_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

ByteStream* StartWatch(CacheService* service, grpc::CallbackServerContext* context,
                       const grpc::ByteBuffer* request) {
  const auto call = std::make_shared<WatchCall>(context);
  call->Start(service, TakeRequest(request));
  return call.get();
}

}  // namespace hearth
