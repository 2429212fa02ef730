// SharedStore: a local store combined with an engine that all stores of a fleet share.
//
// The local store works as without an engine. A lookup first loads from the engine what the local
// store lacks (shared_lookup.h). A publish is written to the engine after the acknowledgement
// (shared_writer.h), or before it if the caller asks for Durability::kShared. If the engine loses
// values, is slow or does not answer, lookups become misses within their time budget; there is no
// other effect. List, Hottest, pins, events and backups cover the local store only.
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
  // For tests; null: the real implementation. `steady` measures pauses; if only `clock` is given,
  // it is the steady clock, too.
  struct Seams {
    Clock *clock = nullptr, *steady = nullptr;
    std::unique_ptr<Executor> executor, waiting;  // as in SharedWriter
  };
  // `secret`: the secret with which `store` was opened. Shared values are named and sealed with it.
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
  // kUnavailable: removed from this store, but perhaps not from the engine; call again.
  absl::StatusOr<DropResult> Drop(const Digest& id, const std::string& tenant, bool force) override;
  // Drops the tenant's entries in all stores, including entries that other stores have pinned.
  absl::StatusOr<DropResult> DropAll(const std::string& tenant, bool force) override;
  absl::StatusOr<QuarantineResult> Quarantine(const PrefixQuery& query,
                                              absl::Span<const ObjectId> objects) override;
  StoreStats Stats() override;
  absl::Status Flush(absl::Time deadline) override;

 private:
  class Session;

  // Erases the heads of these objects of a prompt from the engine.
  absl::Status EraseHeads(const Digest& fingerprint, const std::string& tenant,
                          absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts,
                          absl::Span<const ObjectId> ids);

  SharedCore core_;
  LatencyHistogram commits_;  // latencies of publishes that reached the engine
  SharedLookup lookup_;
  SharedWriter writer_;  // last: its jobs use the other members
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_STORE_H_
