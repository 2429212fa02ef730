#include "services/store/store_watch.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "proto/caller_gone.h"
#include "services/rpc/slice_wire.h"
#include "services/rpc/status_conversion.h"
#include "services/serving/calls/enter_call.h"
#include "services/store/store_conversion.h"

namespace hearth {
namespace {

// Ends a call before it began.
class RefusedWatch final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit RefusedWatch(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

class WatchReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  WatchReactor(TieredStore* store, std::unique_ptr<CallGate::Call> call,
               std::shared_ptr<void> place)
      : call_(std::move(call)), place_(std::move(place)), incarnation_(store->incarnation()) {}

  // Ends the stream with the caller's identity.
  void Follow(Identities* identities, const grpc::CallbackServerContext& context,
              const Identity& caller) {
    followed_ = FollowCaller(identities, context, caller,
                             [this](const absl::Status& status) { End(status); });
  }
  void Start(TieredStore* store, CallGate* gate, const std::string& tenant,
             const v1::WatchRequest& request) {
    const WatchFrom from{request.incarnation(), request.since_sequence(), !request.no_snapshot()};
    WatchStart start = store->Subscribe(tenant, from, [this](const StoreEvent& event) {
      v1::WatchEvent message;
      EventToProto(event, &message);
      Push(std::move(message));
    });
    subscription_ = std::move(start.subscription);
    closing_ = gate->OnClose([this] { End(CallGate::ClosedError()); });
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
    call_->StopClock();  // it may last for days
    WriteNext();
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) ended_ = true;
    WriteNext();
  }
  void OnCancel() override { End(CallerGone()); }
  void OnDone() override {
    // All wait for a callback in progress, so none comes after this.
    subscription_.reset();
    closing_.reset();
    followed_.reset();
    delete this;
  }

 private:
  void Push(v1::WatchEvent event) {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
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

  void End(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    status_ = std::move(status);
    WriteNext();
  }

  // gRPC allows one write at a time, and Finish once, after it.
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_ || !started_) return;
    if (ended_) {
      finished_ = true;
      Finish(ToGrpcStatus(call_->Finish(status_)));
      return;
    }
    v1::WatchEvent next;
    if (!TakeNext(&next)) return;
    next.set_incarnation(incarnation_);
    current_ = MessageBytes(next);
    writing_ = true;
    StartWrite(&current_);
  }

  // What comes before the snapshot, the snapshot, what happened since.
  bool TakeNext(v1::WatchEvent* next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
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

  const std::unique_ptr<CallGate::Call> call_;
  const std::shared_ptr<void> place_;  // among the open streams
  const uint64_t incarnation_;
  std::shared_ptr<void> subscription_;
  std::shared_ptr<void> closing_, followed_;
  absl::Mutex mutex_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<v1::WatchEvent> opening_ ABSL_GUARDED_BY(mutex_);  // START, and what was missed
  std::vector<RestorePoint> snapshot_ ABSL_GUARDED_BY(mutex_);  // still to be sent
  uint64_t snapshot_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  bool snapshot_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<v1::WatchEvent> queue_ ABSL_GUARDED_BY(mutex_);  // after the above
  grpc::ByteBuffer current_;                                  // read by gRPC while writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartWatch(TieredStore* store, CallGate* gate,
                                                       Identities* identities, StreamLimit* streams,
                                                       grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer& bytes) {
  const absl::StatusOr<Identity> caller = CallerOf(identities, *context);
  auto call = EnterCall(gate, caller, "Watch", *context, bytes.Length());
  if (call == nullptr) return new RefusedWatch(ToGrpcStatus(CallGate::ClosedError()));
  if (!caller.ok()) return new RefusedWatch(ToGrpcStatus(call->Finish(caller.status())));
  v1::WatchRequest request;
  if (absl::Status status = ParseSmallMessage(bytes, &request); !status.ok()) {
    return new RefusedWatch(ToGrpcStatus(call->Finish(status)));
  }
  const absl::StatusOr<std::string> tenant = caller->TenantOf(request.tenant());
  if (!tenant.ok()) return new RefusedWatch(ToGrpcStatus(call->Finish(tenant.status())));
  absl::StatusOr<std::shared_ptr<void>> place = streams->Enter(*caller);
  if (!place.ok()) {
    return new RefusedWatch(ToGrpcStatus(call->Finish(place.status()), context));
  }
  auto* reactor = new WatchReactor(store, std::move(call), *std::move(place));
  reactor->Follow(identities, *context, *caller);
  reactor->Start(store, gate, *tenant, request);
  return reactor;
}

}  // namespace hearth
