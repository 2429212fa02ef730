// SharedStore: a store in front of which lies an engine that all stores of a fleet share.
//
// The store behind does what it always does. What a lookup lacks there is first brought from the
// engine (shared_lookup.h); what is published there is written to the engine behind the
// acknowledgement (shared_writer.h), or before it where Durability::kShared asks for that. The
// engine may lose anything, answer late or not at all: then there are misses, within the budget of
// a lookup, and nothing else. List, Hottest, events and backups are of the store behind alone.
//
// Thread safety: as TieredStore. Ownership: owns the store and the engine.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_STORE_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_STORE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache_store/base/clock.h"
#include "cache_store/base/executor.h"
#include "cache_store/base/latency.h"
#include "cache_store/shared/tier/shared_core.h"
#include "cache_store/shared/tier/shared_lookup.h"
#include "cache_store/shared/tier/shared_writer.h"

namespace hearth {

class SharedStore final : public TieredStore {
 public:
  // Null: the real thing; `steady`, by which pauses are: with a clock here, that one.
  struct Seams {
    Clock *clock = nullptr, *steady = nullptr;
    std::unique_ptr<Executor> executor, waiting;  // SharedWriter's
  };
  // `secret`: the one that `store` was opened with. What is shared is found, named and sealed by
  // it.
  SharedStore(std::unique_ptr<TieredStore> store, std::unique_ptr<SharedEngine> engine,
              const std::string& secret, const SharedOptions& options, Seams seams);
  SharedStore(std::unique_ptr<TieredStore> store, std::unique_ptr<SharedEngine> engine,
              const std::string& secret, const SharedOptions& options)
      : SharedStore(std::move(store), std::move(engine), secret, options, Seams()) {}

  absl::StatusOr<std::unique_ptr<FetchSession>> Fetch(const PrefixQuery& query,
                                                      uint32_t above_tokens,
                                                      uint32_t max_tokens) override;
  Peeked Peek(const PrefixQuery& query, uint32_t max_tokens) override {
    return core_.store->Peek(query, max_tokens);
  }
  absl::StatusOr<std::unique_ptr<FetchSession>> FetchById(const Digest& id,
                                                          const std::string& tenant) override;
  absl::StatusOr<std::unique_ptr<PublishSession>> Publish(PublishSpec spec) override;
  absl::StatusOr<ClaimDecision> Claim(const PrefixQuery& query, ClaimRequest ask) override;
  void Observe(const Fingerprint& fingerprint, const std::string& tenant) override;
  absl::StatusOr<ExplainReport> Explain(const PrefixQuery& query) override;
  // Here alone, as is a drop by force of what is pinned elsewhere.
  absl::StatusOr<RestorePoint> SetPinned(const Digest& id, const std::string& tenant,
                                         bool pinned) override {
    return core_.store->SetPinned(id, tenant, pinned);
  }
  // kUnavailable: removed here, and maybe not from the engine; call again.
  absl::StatusOr<DropResult> Drop(const Digest& id, const std::string& tenant, bool force) override;
  // In all stores: pins of others are dropped, too.
  absl::StatusOr<DropResult> DropAll(const std::string& tenant, bool force) override;
  absl::StatusOr<DropResult> RaiseDropNumber(const std::string& tenant, uint64_t number,
                                             bool force) override {
    return core_.store->RaiseDropNumber(tenant, number, force);
  }
  uint64_t DropNumber(const std::string& tenant) override {
    return core_.store->DropNumber(tenant);
  }
  absl::StatusOr<QuarantineResult> Quarantine(const PrefixQuery& query,
                                              absl::Span<const ObjectId> objects) override;
  std::vector<RestorePoint> List(const std::string& tenant) override {
    return core_.store->List(tenant);
  }
  std::vector<RestorePoint> Hottest(size_t limit) override { return core_.store->Hottest(limit); }
  StoreStats Stats() override;
  TenantFigures StatsOf(const std::string& tenant) override { return core_.store->StatsOf(tenant); }
  uint64_t incarnation() const override { return core_.store->incarnation(); }
  std::optional<SharedMemory> shared_memory() const override {
    return core_.store->shared_memory();
  }
  std::optional<SharedMemory> shared_device() const override {
    return core_.store->shared_device();
  }
  std::shared_ptr<std::byte> AllocateSlice(size_t bytes) override {
    return core_.store->AllocateSlice(bytes);
  }
  void WaitForMemory() override { core_.store->WaitForMemory(); }
  WatchStart Subscribe(const std::string& tenant, const WatchFrom& from,
                       EventCallback callback) override {
    return core_.store->Subscribe(tenant, from, std::move(callback));
  }
  std::optional<ChunkRun> ChunksOf(const Digest& id, const std::string& tenant, uint32_t first,
                                   uint32_t most_tokens) override {
    return core_.store->ChunksOf(id, tenant, first, most_tokens);
  }
  absl::StatusOr<BackupReport> BackUp(const std::string& to) override {
    return core_.store->BackUp(to);
  }
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
