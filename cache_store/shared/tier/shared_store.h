// SharedStore: a local store, combined with an engine that several stores share.
//
// A lookup first loads objects that the local store does not have from the engine
// (shared_lookup.h). A publish is written to the engine after it is acknowledged (shared_writer.h)
// or, with Durability::kShared, before. If the engine loses values, is slow or does not answer,
// lookups become misses within their time budget; there is no other effect. List, Hottest, pins,
// events and backups concern only the local store.
//
// Thread safety: as TieredStore. Ownership: owns the store and the engine.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_STORE_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_STORE_H_

#include <memory>
#include <string>
#include <utility>

#include "cache_store/base/clock.h"
#include "cache_store/base/executor.h"
#include "cache_store/base/latency.h"
#include "cache_store/shared/tier/shared_core.h"
#include "cache_store/shared/tier/shared_lookup.h"
#include "cache_store/shared/tier/shared_writer.h"

namespace hearth {

class SharedStore final : public ForwardingStore {
 public:
  // Replacements for tests; null: the real implementation. `steady` measures pauses; if only
  // `clock` is given, it is also the steady clock.
  struct Seams {
    Clock *clock = nullptr, *steady = nullptr;
    std::unique_ptr<Executor> executor, waiting;  // see SharedWriter's constructor
  };
  // `secret`: the secret of `store`, with which shared values are named and sealed.
  SharedStore(std::unique_ptr<LocalStore> store, std::unique_ptr<SharedEngine> engine,
              const std::string& secret, const SharedOptions& options, Seams seams);
  SharedStore(std::unique_ptr<LocalStore> store, std::unique_ptr<SharedEngine> engine,
              const std::string& secret, const SharedOptions& options)
      : SharedStore(std::move(store), std::move(engine), secret, options, Seams()) {}

  absl::StatusOr<std::unique_ptr<FetchSession>> Fetch(const PrefixQuery& query,
                                                      uint32_t above_tokens,
                                                      uint32_t max_tokens) override;
  absl::StatusOr<std::unique_ptr<FetchSession>> FetchById(const Digest& id,
                                                          const std::string& tenant) override;
  absl::StatusOr<std::unique_ptr<PublishSession>> Publish(PublishSpec spec) override;
  absl::StatusOr<ClaimDecision> Claim(const PrefixQuery& query, ClaimRequest ask) override;
  void Observe(const Fingerprint& fingerprint, const std::string& tenant) override;
  absl::StatusOr<ExplainReport> Explain(const PrefixQuery& query) override;
  // Drops a restore point. kUnavailable: it is removed from this store, but may still be in the
  // engine; call again.
  absl::StatusOr<DropResult> Drop(const Digest& id, const std::string& tenant, bool force) override;
  // Drops all entries of the tenant in all stores, including entries that are pinned in other
  // stores.
  absl::StatusOr<DropResult> DropAll(const std::string& tenant, bool force) override;
  absl::StatusOr<QuarantineResult> Quarantine(const PrefixQuery& query,
                                              absl::Span<const ObjectId> objects) override;
  StoreStats Stats() override;
  absl::Status Flush(absl::Time deadline) override;

 private:
  class Session;

  // Erases the heads of these objects of a prompt from the engine, so that no store loads the
  // objects.
  absl::Status EraseHeads(const Digest& fingerprint, const std::string& tenant,
                          absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts,
                          absl::Span<const ObjectId> ids);

  SharedCore core_;
  LatencyHistogram commits_;  // latencies of publishes with Durability::kShared
  SharedLookup lookup_;
  SharedWriter writer_;  // the last member, because its jobs use the other members
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_STORE_H_
