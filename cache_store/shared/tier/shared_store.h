// SharedStore: a store in front of which lies an engine that all stores of a fleet share.
//
// The store behind does what it always does. What a lookup lacks there is first brought from the
// engine (shared_lookup.h); what is published there is written to the engine after the
// acknowledgement (shared_writer.h), or before it if Durability::kShared asks for that. The engine
// may lose anything, answer late or not at all: then there are misses, within the budget of a
// lookup, and nothing else. List, Hottest, pins, events and backups are of the store behind alone.
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
  // Null: the real thing; `steady`, by which pauses are: with a clock here, that one.
  struct Seams {
    Clock *clock = nullptr, *steady = nullptr;
    std::unique_ptr<Executor> executor, waiting;  // SharedWriter's
  };
  // `secret`: the one that `store` was opened with. What is shared is found, named and sealed by
  // it.
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
  // kUnavailable: removed here, and maybe not from the engine; call again.
  absl::StatusOr<DropResult> Drop(const Digest& id, const std::string& tenant, bool force) override;
  // In all stores: pins of others are dropped, too.
  absl::StatusOr<DropResult> DropAll(const std::string& tenant, bool force) override;
  absl::StatusOr<QuarantineResult> Quarantine(const PrefixQuery& query,
                                              absl::Span<const ObjectId> objects) override;
  StoreStats Stats() override;
  absl::Status Flush(absl::Time deadline) override;

 private:
  class Session;

  // Heads of these objects of a prompt.
  absl::Status EraseHeads(const Digest& fingerprint, const std::string& tenant,
                          absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts,
                          absl::Span<const ObjectId> ids);

  SharedCore core_;
  LatencyHistogram commits_;  // those that reached the engine
  SharedLookup lookup_;
  SharedWriter writer_;  // last: its jobs use all else
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_STORE_H_
