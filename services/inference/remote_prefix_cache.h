// RemotePrefixCache: the worker's cache over gRPC, on a store that may be slow, down or wrong.
//
// A plan is checked against the request and the running model before a byte is used: token ids,
// cuts, position, mask, fingerprint and objects; then every slice against its digest. A store on
// the same host shares its memory (shared_fetch.h); if that fails, the same fetch goes over the
// wire. Thread safety: all methods from any thread.
// Ownership: owns its channel; counters must outlive it, and it must outlive leases.
#ifndef HEARTH_SERVICES_INFERENCE_REMOTE_PREFIX_CACHE_H_
#define HEARTH_SERVICES_INFERENCE_REMOTE_PREFIX_CACHE_H_

#include <grpcpp/channel.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/cache_store.pb.h"
#include "proto/kv_layout.h"
#include "services/inference/cache_counters.h"
#include "services/inference/device_client.h"
#include "services/inference/explainer.h"
#include "services/inference/model_fingerprints.h"
#include "services/inference/store_connection.h"
#include "services/rpc/segment_client.h"

namespace hearth {

class RemotePrefixCache final : public PrefixCache, public Explainer {
 public:
  // REQUIRES: `layout` is that of all `fingerprints`. `shared_memory`: whether the store's is
  // read, if it offers it. `devices`: for the store's memory on the worker's device; null: none.
  // `clock`, `connects`: as StoreConnection.
  RemotePrefixCache(std::shared_ptr<grpc::Channel> channel, const ModelFingerprints& fingerprints,
                    const KvLayout& layout, CacheCounters* counters, bool shared_memory = true,
                    std::unique_ptr<DeviceClient> devices = nullptr, Clock* clock = nullptr,
                    bool connects = true);
  // Cancels calls in progress; afterwards no callback of an explanation runs.
  ~RemotePrefixCache() override;

  FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     absl::Time deadline) override;
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

  StoreConnection* connection() { return &connection_; }  // for tests

 private:
  struct Attempt;

  absl::StatusOr<FetchOutcome> TryFetch(Attempt* attempt);
  absl::StatusOr<v1::FetchPlan> StartFetch(Attempt* attempt, const MappedSegment* segment,
                                           const MappedDevice* device, ByteCall* stream);
  absl::StatusOr<std::vector<std::shared_ptr<const KvObject>>> TakeObjects(
      Attempt* attempt, const v1::FetchPlan& plan, const MappedSegment* segment,
      const MappedDevice* device, ByteCall* stream);
  absl::StatusOr<PublishOutcome> TryPublish(const PublishRequestSpec& spec, absl::Time deadline);
  absl::StatusOr<LeaseOutcome> TryLease(const PrefixRequest& prefix, uint32_t above_tokens,
                                        uint32_t max_tokens, const LeaseTerms& terms,
                                        absl::Time deadline, bool* waited);

  CacheCounters* const counters_;
  const KvLayout layout_;
  const bool shared_memory_;
  StoreConnection connection_;
  SegmentClient segments_;
  const std::unique_ptr<DeviceClient> devices_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_REMOTE_PREFIX_CACHE_H_
