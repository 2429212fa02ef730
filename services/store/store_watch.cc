#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "services/rpc/slice_wire.h"
#include "services/serving/calls/stream_call.h"
#include "services/store/store_calls.h"
#include "services/store/store_conversion.h"

namespace hearth {
namespace {

// One Watch stream: what is stored, then the store's events, to one caller.
//
// The snapshot is taken once, with the place in the events at which it is true, and sent as fast as
// the caller reads (some 300 bytes a restore point are held until then). Events wait behind it in a
// bounded queue: a caller that reads too slowly loses events rather than holding up the store; the
// queue is emptied and one LOST event takes its place.
class WatchCall final : public StreamCall {
 public:
  WatchCall(const StoreCallParts& parts, grpc::CallbackServerContext* context)
      : StreamCall(context, parts.patience) {}

  void Start(const StoreCallParts& parts, StreamLimit* streams, const grpc::ByteBuffer& bytes) {
    const absl::StatusOr<Identity> caller =
        Enter(parts.gate, parts.identities, "Watch", bytes.Length());
    if (!caller.ok()) return End(caller.status());
    v1::WatchRequest request;
    if (absl::Status status = ParseSmallMessage(bytes, &request); !status.ok()) return End(status);
    const absl::StatusOr<std::string> tenant = caller->TenantOf(request.tenant());
    if (!tenant.ok()) return End(tenant.status());
    absl::StatusOr<std::shared_ptr<void>> place = streams->Enter(*caller);
    if (!place.ok()) return End(place.status());
    KeepUntilDone(*std::move(place));
    KeepUntilDone(FollowCaller(parts.identities, *context_, *caller,
                               [this](const absl::Status& status) { Abort(status); }));
    KeepUntilDone(parts.gate->OnClose([this] { Abort(CallGate::ClosedError()); }));
    Subscribe(parts.store, *tenant, request);
  }

 private:
  void Subscribe(TieredStore* store, const std::string& tenant, const v1::WatchRequest& request) {
    incarnation_ = store->incarnation();
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
    snapshot_ = std::move(start.snapshot);
    snapshot_sequence_ = start.sequence;
    started_ = true;
    call()->StopClock();  // it may last for days
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

  // The opening, the snapshot, later events.
  bool NextEvent(v1::WatchEvent* next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    mutex_.AssertHeld();
    std::deque<v1::WatchEvent>& ready = opening_.empty() && snapshot_ended_ ? queue_ : opening_;
    if (!ready.empty()) {
      *next = std::move(ready.front());
      ready.pop_front();
      return true;
    }
    if (snapshot_ended_) return false;
    next->set_sequence(snapshot_sequence_);
    if (snapshot_.empty()) {
      snapshot_ended_ = true;
      next->set_kind(v1::WatchEvent::SNAPSHOT_END);
      return true;
    }
    next->set_kind(v1::WatchEvent::SNAPSHOT);
    RestorePointToProto(snapshot_.back(), next->mutable_restore_point());
    snapshot_.pop_back();  // most recently used first
    return true;
  }

  uint64_t incarnation_ = 0;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<v1::WatchEvent> opening_ ABSL_GUARDED_BY(mutex_);  // START, and what was missed
  std::vector<RestorePoint> snapshot_ ABSL_GUARDED_BY(mutex_);  // still to be sent
  uint64_t snapshot_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  bool snapshot_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<v1::WatchEvent> queue_ ABSL_GUARDED_BY(mutex_);  // after the above
};

}  // namespace

ByteStream* StartWatch(const StoreCallParts& parts, StreamLimit* streams,
                       grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const auto call = std::make_shared<WatchCall>(parts, context);
  call->Start(parts, streams, TakeRequest(request));
  return call.get();
}

}  // namespace hearth
