#include "services/store_watch.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "services/status_conversion.h"
#include "services/store_conversion.h"

namespace hearth {
namespace {

// Ends a call before it began.
class RefusedWatch final : public grpc::ServerWriteReactor<v1::WatchEvent> {
 public:
  explicit RefusedWatch(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

class WatchReactor final : public grpc::ServerWriteReactor<v1::WatchEvent> {
 public:
  WatchReactor(TieredStore* store, std::unique_ptr<CallGate::Call> call, std::atomic<int>* streams)
      : call_(std::move(call)), streams_(streams), incarnation_(store->Stats().incarnation) {}

  void Start(TieredStore* store, CallGate* gate, const std::string& tenant) {
    v1::WatchEvent start;
    start.set_kind(v1::WatchEvent::START);
    Push(std::move(start));
    subscription_ = store->Subscribe(tenant, [this](const StoreEvent& event) {
      v1::WatchEvent message;
      EventToProto(event, &message);
      Push(std::move(message));
    });
    closing_ = gate->OnClose([this] { End(CallGate::ClosedError()); });
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) ended_ = true;
    WriteNext();
  }
  void OnCancel() override { End(absl::CancelledError("the caller went away")); }
  void OnDone() override {
    // Both wait for a callback in progress, so none comes after this.
    subscription_.reset();
    closing_.reset();
    streams_->fetch_sub(1);
    delete this;
  }

 private:
  void Push(v1::WatchEvent event) {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    event.set_incarnation(incarnation_);
    if (queue_.size() >= kMaxWatchQueue) {
      const uint64_t sequence = event.sequence();
      event.Clear();
      event.set_kind(v1::WatchEvent::LOST);
      event.set_incarnation(incarnation_);
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
    if (writing_ || finished_) return;
    if (ended_) {
      finished_ = true;
      Finish(ToGrpcStatus(call_->Finish(status_)));
      return;
    }
    if (queue_.empty()) return;
    current_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    StartWrite(&current_);
  }

  const std::unique_ptr<CallGate::Call> call_;
  std::atomic<int>* const streams_;
  const uint64_t incarnation_;
  std::shared_ptr<void> subscription_;
  std::shared_ptr<void> closing_;
  absl::Mutex mutex_;
  std::deque<v1::WatchEvent> queue_ ABSL_GUARDED_BY(mutex_);
  v1::WatchEvent current_;  // read by gRPC while writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerWriteReactor<v1::WatchEvent>* StartWatch(TieredStore* store, CallGate* gate,
                                                     std::atomic<int>* streams, int max_streams,
                                                     grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest& request) {
  absl::StatusOr<std::string> tenant = TenantOf(request.tenant());
  if (!tenant.ok()) return new RefusedWatch(ToGrpcStatus(tenant.status()));
  std::unique_ptr<CallGate::Call> call = gate->Enter("Watch");
  if (call == nullptr) return new RefusedWatch(ToGrpcStatus(CallGate::ClosedError()));
  if (streams->fetch_add(1) >= max_streams) {
    streams->fetch_sub(1);
    return new RefusedWatch(
        ToGrpcStatus(call->Finish(absl::ResourceExhaustedError(absl::StrCat(
                         "watch: ", max_streams, " streams are open, which is the limit"))),
                     context));
  }
  auto* reactor = new WatchReactor(store, std::move(call), streams);
  reactor->Start(store, gate, *tenant);
  return reactor;
}

}  // namespace hearth
