// StoreConnection: a worker's connection to its store, and the calls in progress on it.
//
// A store that is down costs a request nothing (the channel's state tells), one that is silent
// costs the fetch budget once and is not asked for a while (CircuitBreaker), and one that comes
// back is used again automatically. Thread safety: all methods from any thread.
#ifndef HEARTH_SERVICES_INFERENCE_STORE_CONNECTION_H_
#define HEARTH_SERVICES_INFERENCE_STORE_CONNECTION_H_

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
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "proto/cache_store.grpc.pb.h"
#include "proto/fingerprint.h"
#include "services/inference/blocking_stream.h"
#include "services/inference/model_fingerprints.h"
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

class StoreConnection {
 public:
  // A call waits at most this long for a connection that is being made.
  static constexpr int kConnectWaitMs = 250;

  // `fingerprints`: of the prefixes that are asked for. `clock`: what deadlines are compared
  // with when a call was cancelled; null: the machine's. `connects`: not within this process,
  // where the channel is always there.
  StoreConnection(std::shared_ptr<grpc::Channel> channel, const ModelFingerprints& fingerprints,
                  Clock* clock = nullptr, bool connects = true);

  // OK when a call may be made now.
  absl::Status CheckReachable(absl::Time deadline);
  void ToProto(const PrefixRequest& prefix, bool with_fields, v1::Prefix* out) const;

  const ModelFingerprints& fingerprints() const { return fingerprints_; }
  Clock* clock() { return clock_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  v1::CacheStore::Stub* stub() { return stub_.get(); }
  CircuitBreaker* breaker() { return &breaker_; }
  CallSet* calls() { return &calls_; }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::CacheStore::Stub> stub_;
  const ModelFingerprints fingerprints_;
  SystemClock system_clock_;
  Clock* const clock_;
  const bool connects_;
  CircuitBreaker breaker_;
  CallSet calls_;
};

using ByteCall = BlockingStream<grpc::ByteBuffer, grpc::ByteBuffer>;

// A streaming call to the store, ended with all others, or by `stop`, at the latest by `deadline`.
// An operation that has not ended by `patience` ends it, and so does the destructor.
struct StoreStream {
  StoreStream(StoreConnection* connection, const std::string& method, const PrefixRequest& prefix,
              absl::Time patience, absl::Time deadline, std::shared_ptr<CallStop> stop = nullptr)
      : active(connection->calls(), std::move(stop)),
        stream(connection->channel(), "/hearth.v1.CacheStore/" + method,
               Prepared(active.context(), prefix.request_id, deadline), patience,
               connection->clock()) {}
  static grpc::ClientContext* Prepared(grpc::ClientContext* context, const std::string& request_id,
                                       absl::Time deadline);

  CallSet::Entry active;
  ByteCall stream;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_STORE_CONNECTION_H_
