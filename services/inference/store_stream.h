// StoreStream: a streaming call of a worker to its store, and what its cache knows of all of them:
// CircuitBreaker, whether the store answers, and CallSet, to end them together.
#ifndef HEARTH_SERVICES_INFERENCE_STORE_STREAM_H_
#define HEARTH_SERVICES_INFERENCE_STORE_STREAM_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <cassert>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "services/inference/blocking_stream.h"
#include "services/rpc/call_metadata.h"
#include "worker/prefix/call_stop.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

// CircuitBreaker: stops asking a peer that does not answer, so that requests do not each wait for
// it.
//
// Open after an unanswered call, for one second, then twice as long after each further one, up to
// eight. One answer closes it. A peer that refuses connections needs no breaker, since that is
// quick.
// Thread safety: all methods from any thread. Time is the caller's, so that tests need no clock.
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
    if (now < open_until_) return;  // a call from before it opened
    open_until_ = now + absl::Milliseconds(cooldown_ms_);
    cooldown_ms_ = std::min(2 * cooldown_ms_, kMaxCooldownMs);
  }

 private:
  mutable absl::Mutex mutex_;
  int cooldown_ms_ ABSL_GUARDED_BY(mutex_) = kFirstCooldownMs;
  absl::Time open_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

// CallSet: a client's calls in progress, so that all can be ended at once, and waited for.
//
// Thread safety: all methods from any thread. Ownership: must outlive its entries.
class CallSet {
 public:
  // A call is in the set while this lives. Cancelled at once after CancelAll. `stop`, which may be
  // null, cancels it too.
  class Entry {
   public:
    explicit Entry(CallSet* set, std::shared_ptr<CallStop> stop = nullptr)
        : set_(set), context_(std::make_unique<grpc::ClientContext>()) {
      stop_.emplace(std::move(stop), [context = context_.get()] { context->TryCancel(); });
      absl::MutexLock lock(&set_->mu_);
      set_->calls_.insert(this);
      if (set_->cancelled_) context_->TryCancel();
    }
    // It is in the set until its context is gone, which holds the channel: the last to let go of a
    // channel must not be gRPC's own thread, which would wait for itself to end.
    ~Entry() {
      stop_.reset();
      std::unique_ptr<grpc::ClientContext> ended;
      {
        absl::MutexLock lock(&set_->mu_);
        std::swap(ended, context_);
      }
      ended.reset();
      absl::MutexLock lock(&set_->mu_);
      set_->calls_.erase(this);
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

    grpc::ClientContext* context() { return context_.get(); }

   private:
    friend class CallSet;
    CallSet* const set_;
    std::unique_ptr<grpc::ClientContext> context_;
    std::optional<CallStop::Call> stop_;
  };

  CallSet() = default;
  ~CallSet() {
    absl::MutexLock lock(&mu_);
    assert(calls_.empty());
  }
  CallSet(const CallSet&) = delete;
  CallSet& operator=(const CallSet&) = delete;

  // Cancels all calls, later ones too.
  void CancelAll() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    for (const Entry* call : calls_) {
      if (call->context_ != nullptr) call->context_->TryCancel();
    }
  }
  // Waits until there is none.
  void AwaitEnd() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](CallSet* set) ABSL_NO_THREAD_SAFETY_ANALYSIS { return set->calls_.empty(); }, this));
  }

 private:
  absl::Mutex mu_;
  std::set<Entry*> calls_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

using ByteCall = BlockingStream<grpc::ByteBuffer, grpc::ByteBuffer>;

// A streaming call to the store, ended with all others, or by `stop`, at the latest by `deadline`.
// An operation that has not ended by `patience` ends it, and so does the destructor. Both are times
// of `clock`, which only goes forward.
struct StoreStream {
  StoreStream(CallSet* calls, const std::shared_ptr<grpc::Channel>& channel, Clock* clock,
              const std::string& method, const PrefixRequest& prefix, absl::Time patience,
              absl::Time deadline, std::shared_ptr<CallStop> stop = nullptr)
      : active(calls, std::move(stop)),
        stream(channel, "/hearth.v1.CacheStore/" + method,
               Prepared(active.context(), prefix.request_id, deadline - clock->Now()), patience,
               clock) {}
  static grpc::ClientContext* Prepared(grpc::ClientContext* context, const std::string& request_id,
                                       absl::Duration timeout) {
    SendRequestId(request_id, context);
    context->set_deadline(MonotonicIn(timeout));
    return context;
  }

  CallSet::Entry active;
  ByteCall stream;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_STORE_STREAM_H_
