// Three classes for calls of a worker to its store. StoreStream: one streaming call.
// CircuitBreaker: stops calls to a store that does not answer. CallSet: ends all calls together.
#ifndef HEARTH_SERVICES_INFERENCE_STORE_STREAM_H_
#define HEARTH_SERVICES_INFERENCE_STORE_STREAM_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <cassert>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "services/inference/blocking_stream.h"
#include "services/rpc/call_metadata.h"
#include "services/rpc/trace_span.h"
#include "worker/prefix/call_stop.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

// CircuitBreaker: stops calls to a peer that does not answer, so that not every request waits for
// the peer.
//
// It opens for one second after an unanswered call, and for twice as long after each further
// unanswered call, up to eight seconds. An answer closes it. A peer that refuses connections needs
// no breaker, because a refusal is quick. Thread safety: all methods from any thread. Callers pass
// the time, so that tests need no clock.
class CircuitBreaker {
 public:
  static constexpr int kFirstCooldownMs = 1000;
  static constexpr int kMaxCooldownMs = 8000;

  bool Allows(absl::Time now) const {
    absl::MutexLock lock(&mutex_);
    return now >= open_until_;
  }
  void OnAnswer() {
    absl::MutexLock lock(&mutex_);
    cooldown_ms_ = kFirstCooldownMs;
    open_until_ = absl::InfinitePast();
  }
  void OnSilence(absl::Time now) {
    absl::MutexLock lock(&mutex_);
    if (now < open_until_) return;  // the unanswered call had begun before the breaker opened
    open_until_ = now + absl::Milliseconds(cooldown_ms_);
    cooldown_ms_ = std::min(2 * cooldown_ms_, kMaxCooldownMs);
  }

 private:
  mutable absl::Mutex mutex_;
  int cooldown_ms_ ABSL_GUARDED_BY(mutex_) = kFirstCooldownMs;
  absl::Time open_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

// CallSet: the calls of a client that are in progress. It can end all of them at once, and wait
// until they have ended.
//
// Thread safety: all methods from any thread. Ownership: must outlive its entries.
class CallSet {
 public:
  // A call in the set, while this object lives. CancelAll cancels it, even before it begins, and so
  // does `stop`, which may be null.
  class Entry {
   public:
    explicit Entry(CallSet* set, std::shared_ptr<CallStop> stop = nullptr)
        : counted_(set),
          all_(set->stop_, [this] { context_.TryCancel(); }),
          stop_(std::move(stop), [this] { context_.TryCancel(); }) {}
    grpc::ClientContext* context() { return &context_; }

   private:
    // Destroyed last: the set must wait until the context has released its channel. Otherwise
    // gRPC's own thread could be the last to release the channel, and would wait for its own end.
    struct Counted {
      explicit Counted(CallSet* counting) : set(counting) { set->Count(1); }
      ~Counted() { set->Count(-1); }
      CallSet* const set;
    };
    const Counted counted_;
    grpc::ClientContext context_;
    const CallStop::Call all_, stop_;
  };

  CallSet() = default;
  ~CallSet() {
    absl::MutexLock lock(&mu_);
    assert(calls_ == 0);
  }
  CallSet(const CallSet&) = delete;
  CallSet& operator=(const CallSet&) = delete;

  // Cancels all calls, and every call that is added later.
  void CancelAll() { stop_->Stop(); }
  // Waits until the set is empty.
  void AwaitEnd() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](int* calls) { return *calls == 0; }, &calls_));
  }

 private:
  void Count(int more) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    calls_ += more;
  }

  const std::shared_ptr<CallStop> stop_ = std::make_shared<CallStop>();
  absl::Mutex mu_;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
};

// A streaming call to the store. It is ended by CallSet::CancelAll, by `prefix.stop`, by the
// destructor, or if an operation has not ended by `deadline`, a time of `clock`.
struct StoreStream {
  StoreStream(CallSet* calls, const std::shared_ptr<grpc::Channel>& channel, Clock* clock,
              const std::string& method, const PrefixRequest& prefix, absl::Time deadline)
      : active(calls, prefix.stop),
        stream(channel, "/hearth.v1.CacheStore/" + method, WithIds(prefix), deadline, clock) {}
  grpc::ClientContext* WithIds(const PrefixRequest& prefix) {
    SendRequestId(prefix.request_id, active.context());
    if (!prefix.traceparent.empty()) {
      active.context()->AddMetadata(kTraceparentKey, prefix.traceparent);
    }
    return active.context();
  }

  CallSet::Entry active;
  BlockingStream stream;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_STORE_STREAM_H_
