// RemotePrefixCache: the worker's cache over gRPC, on a store that may be slow, down or wrong.
//
// Its parts: store_connection.h and fetch_client.h. Thread safety: all methods from any thread.
// Ownership: owns its channel; counters must outlive it, and it must outlive lent bytes and leases.
#ifndef HEARTH_SERVICES_INFERENCE_REMOTE_PREFIX_CACHE_H_
#define HEARTH_SERVICES_INFERENCE_REMOTE_PREFIX_CACHE_H_

#include <grpcpp/channel.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "services/inference/cache_counters.h"
#include "services/inference/explainer.h"
#include "services/inference/fetch_client.h"
#include "services/inference/store_connection.h"

namespace hearth {

class RemotePrefixCache final : public PrefixCache, public Explainer {
 public:
  // REQUIRES: `layout` is that of `fingerprint`. `shared_memory`: how to use the store's, if it
  // offers it. `devices`: for the store's memory on the worker's device; null: none.
  // `clock`: as StoreConnection.
  RemotePrefixCache(std::shared_ptr<grpc::Channel> channel, const Fingerprint& fingerprint,
                    const KvLayout& layout, CacheCounters* counters,
                    SharedMemoryUse shared_memory = SharedMemoryUse::kLend,
                    std::unique_ptr<DeviceClient> devices = nullptr, Clock* clock = nullptr);
  // Cancels calls in progress; afterwards no callback of an explanation runs.
  ~RemotePrefixCache() override;

  FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     absl::Time deadline) override {
    return fetches_.Fetch(prefix, above_tokens, max_tokens, deadline);
  }
  PublishOutcome Publish(const PublishRequestSpec& spec, absl::Time deadline) override {
    return counters_->EndPublish(TryPublish(spec, deadline));
  }
  LeaseOutcome Lease(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     const LeaseTerms& terms, absl::Time deadline) override;
  bool Quarantine(const PrefixRequest& prefix, const std::vector<ObjectId>& objects,
                  absl::Time deadline) override;
  // Ends the fetches, publishes, leases and explanations in progress; later ones are refused.
  void CancelCalls() override { connection_.calls()->CancelAll(); }
  void Explain(PrefixRequest prefix, absl::Time deadline, ExplainCallback done) override;

 private:
  struct Explains;
  static std::shared_ptr<Explains> MakeExplains();

  absl::StatusOr<PublishOutcome> TryPublish(const PublishRequestSpec& spec, absl::Time deadline);
  absl::StatusOr<LeaseOutcome> TryLease(const PrefixRequest& prefix, uint32_t above_tokens,
                                        uint32_t max_tokens, const LeaseTerms& terms,
                                        absl::Time deadline, bool* waited);

  CacheCounters* const counters_;
  const KvLayout layout_;
  StoreConnection connection_;
  FetchClient fetches_;
  const std::shared_ptr<Explains> explains_ = MakeExplains();
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_REMOTE_PREFIX_CACHE_H_
