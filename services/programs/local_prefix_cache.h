// LocalPrefixCache: the worker's cache over a TieredStore in the same process
// (--store=embedded:DIR).
//
// Gives the same answers as over gRPC, with the same counters, for one machine and one worker.
// Thread safety: all methods from any thread. Ownership: store and counters must outlive it.
#ifndef HEARTH_SERVICES_PROGRAMS_LOCAL_PREFIX_CACHE_H_
#define HEARTH_SERVICES_PROGRAMS_LOCAL_PREFIX_CACHE_H_

#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/store/tiered_store.h"
#include "proto/kv_layout.h"
#include "services/inference/cache_counters.h"
#include "services/inference/explainer.h"
#include "services/inference/model_fingerprints.h"

namespace hearth {

class LocalPrefixCache final : public PrefixCache, public Explainer {
 public:
  // REQUIRES: `layout` is that of all `fingerprints`.
  LocalPrefixCache(TieredStore* store, const ModelFingerprints& fingerprints,
                   const KvLayout& layout, CacheCounters* counters);

  FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     absl::Time deadline) override;
  PublishOutcome Publish(const PublishRequestSpec& spec, absl::Time) override {
    return counters_->EndPublish(TryPublish(spec));
  }
  LeaseOutcome Lease(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     const LeaseTerms& terms, absl::Time deadline) override;
  bool Quarantine(const PrefixRequest& prefix, const std::vector<ObjectId>& objects,
                  absl::Time deadline) override;
  // Ends the waits for claims.
  void CancelCalls() override;
  void Explain(PrefixRequest prefix, absl::Time deadline, ExplainCallback done) override;

 private:
  struct Woken;
  PrefixQuery Query(const PrefixRequest& prefix) const;
  absl::StatusOr<FetchOutcome> TryFetch(const PrefixRequest& prefix, uint32_t above_tokens,
                                        uint32_t max_tokens, absl::Time deadline, LoadTrial* load,
                                        uint64_t* bytes);
  absl::StatusOr<PublishOutcome> TryPublish(const PublishRequestSpec& spec);
  absl::StatusOr<LeaseOutcome> TryLease(const PrefixRequest& prefix, uint32_t above_tokens,
                                        uint32_t max_tokens, const LeaseTerms& terms, bool* waited);
  LoadOffer OfferOf(const LookupPlan& plan, Tier slowest_tier) const;
  absl::Status PutObject(const KvObject& object, uint32_t index, PublishSession* session) const;

  TieredStore* const store_;
  CacheCounters* const counters_;
  const ModelFingerprints fingerprints_;
  const KvLayout layout_;
  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::set<Woken*> waits_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_PROGRAMS_LOCAL_PREFIX_CACHE_H_
