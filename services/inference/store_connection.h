// StoreConnection: a worker's connection to its store, and the calls in progress on it.
//
// A store that is down costs a request nothing (the channel's state tells), one that is silent
// costs the fetch budget once and is not asked for a while (circuit_breaker.h), and one that comes
// back is used again automatically. Thread safety: all methods from any thread.
#ifndef HEARTH_SERVICES_INFERENCE_STORE_CONNECTION_H_
#define HEARTH_SERVICES_INFERENCE_STORE_CONNECTION_H_

#include <grpcpp/channel.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "proto/cache_store.grpc.pb.h"
#include "proto/fingerprint.h"
#include "services/inference/call_set.h"
#include "services/inference/circuit_breaker.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

class StoreConnection {
 public:
  // A call waits at most this long for a connection that is being made.
  static constexpr int kConnectWaitMs = 250;

  // `fingerprint`: of the model whose prefixes are asked for. `clock`: what deadlines are compared
  // with when a call was cancelled; null: the machine's.
  StoreConnection(std::shared_ptr<grpc::Channel> channel, const Fingerprint& fingerprint,
                  Clock* clock = nullptr);

  // OK when a call may be made now.
  absl::Status CheckReachable(absl::Time deadline);
  void ToProto(const PrefixRequest& prefix, bool with_fields, v1::Prefix* out) const;

  const Fingerprint& fingerprint() const { return fingerprint_; }
  Clock* clock() { return clock_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  v1::CacheStore::Stub* stub() { return stub_.get(); }
  CircuitBreaker* breaker() { return &breaker_; }
  CallSet* calls() { return &calls_; }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::CacheStore::Stub> stub_;
  const Fingerprint fingerprint_;
  SystemClock system_clock_;
  Clock* const clock_;
  CircuitBreaker breaker_;
  CallSet calls_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_STORE_CONNECTION_H_
