// RemotePrefixCache: the worker's cache over gRPC, on a store that may be slow, down or wrong.
//
// Whatever happens becomes a counted miss here and nowhere else. A store that is down costs a
// request nothing (the channel's state says so), one that is silent costs the fetch budget once and
// is then left alone for a while (circuit_breaker.h), and one that comes back is used again by
// itself. What a plan says is checked against the request and the running model before a byte is
// used: token ids, cuts, position, mask, fingerprint and objects; then every slice against its
// digest. A store on the same host lends its memory (shared_fetch.h); whatever goes wrong with
// that, the same fetch goes over the wire. Thread safety: all methods from any thread. Ownership:
// owns its channel; counters must outlive it, and it what it lends and its leases.
#ifndef HEARTH_SERVICES_INFERENCE_REMOTE_PREFIX_CACHE_H_
#define HEARTH_SERVICES_INFERENCE_REMOTE_PREFIX_CACHE_H_

#include <grpcpp/channel.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/cache_store.grpc.pb.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "services/inference/cache_counters.h"
#include "services/inference/call_set.h"
#include "services/inference/circuit_breaker.h"
#include "services/inference/device_client.h"
#include "services/inference/explainer.h"
#include "services/inference/fetch_stream.h"
#include "services/rpc/segment_client.h"
#include "services/serving/log_rate.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

// What becomes of the memory that a store on the same host shares.
enum class SharedMemoryUse {
  kOff,   // bytes come over the wire
  kCopy,  // copied and verified by the fetch: objects are the caller's own
  kLend,  // verified by the fetch, copied by whoever uses them (KvObject::lent_slices)
};

class RemotePrefixCache final : public PrefixCache, public Explainer {
 public:
  // A fetch waits at most this long for a connection that is being made.
  static constexpr int kConnectWaitMs = 250;

  // `layout` is what `fingerprint` describes. `shared_memory`: of the store's, where it offers it.
  // `devices`: the same on the device that the worker computes on; null: it computes elsewhere.
  RemotePrefixCache(std::shared_ptr<grpc::Channel> channel, const Fingerprint& fingerprint,
                    const KvLayout& layout, CacheCounters* counters,
                    SharedMemoryUse shared_memory = SharedMemoryUse::kLend,
                    std::unique_ptr<DeviceClient> devices = nullptr);
  // Cancels what is under way; after it no callback of an explanation runs.
  ~RemotePrefixCache() override;

  FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     absl::Time deadline) override;
  PublishOutcome Publish(const PublishRequestSpec& spec, absl::Time deadline) override;
  LeaseOutcome Lease(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     const LeaseTerms& terms, absl::Time deadline) override;
  bool Quarantine(const PrefixRequest& prefix, const std::vector<ObjectId>& objects,
                  absl::Time deadline) override;
  // Ends the fetches, publishes, leases and explanations in progress; later ones are refused.
  void CancelCalls() override { calls_.CancelAll(); }
  void Explain(PrefixRequest prefix, absl::Time deadline, ExplainCallback done) override;

 private:
  struct OpenFetch;
  struct Explains;
  static std::shared_ptr<Explains> MakeExplains();

  // OK when a call may be made now.
  absl::Status CheckReachable(absl::Time deadline);
  struct Attempt;
  absl::StatusOr<FetchOutcome> TryFetch(Attempt* attempt);
  absl::StatusOr<v1::FetchPlan> StartFetch(Attempt* attempt, const MappedSegment* segment,
                                           const MappedDevice* device, FetchStream* stream);
  absl::StatusOr<std::vector<std::shared_ptr<const KvObject>>> TakeObjects(
      Attempt* attempt, const v1::FetchPlan& plan,
      const std::shared_ptr<const MappedSegment>& segment, const MappedDevice* device,
      const std::shared_ptr<OpenFetch>& call);
  absl::StatusOr<PublishOutcome> TryPublish(const PublishRequestSpec& spec, absl::Time deadline);
  absl::StatusOr<LeaseOutcome> TryLease(const v1::LeaseRequest& request,
                                        const PrefixRequest& prefix, const LeaseTerms& terms,
                                        absl::Time deadline, bool* waited);
  // Says once that the store is lost, and once that it is back.
  void NoteStore(const absl::Status& status);
  void PrefixToProto(const PrefixRequest& prefix, bool with_fields, v1::Prefix* out) const;

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::CacheStore::Stub> stub_;
  const Fingerprint fingerprint_;
  const KvLayout layout_;
  CacheCounters* const counters_;
  const SharedMemoryUse shared_memory_;
  SegmentClient segments_;
  const std::unique_ptr<DeviceClient> devices_;
  CircuitBreaker breaker_;
  CallSet calls_;
  std::atomic<bool> lost_{false};
  LogRate lost_rate_;
  const std::shared_ptr<Explains> explains_ = MakeExplains();
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_REMOTE_PREFIX_CACHE_H_
