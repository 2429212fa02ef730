// Store: implements LocalStore. It creates its parts and passes each call to one of them. It
// implements only short calls under the lock itself: listing, pinning, dropping, counting.
//
// Thread safety: as TieredStore; for the locks see store_core.h. Ownership: owns its parts.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_STORE_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "cache_store/base/repeating_thread.h"
#include "cache_store/store/background/disk_writer.h"
#include "cache_store/store/background/promoter.h"
#include "cache_store/store/background/quarantiner.h"
#include "cache_store/store/background/scrubber.h"
#include "cache_store/store/background/volume_watch.h"
#include "cache_store/store/calls/claim_handler.h"
#include "cache_store/store/calls/fetcher.h"
#include "cache_store/store/calls/prompt_explainer.h"
#include "cache_store/store/calls/publish_session.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class Store final : public LocalStore {
 public:
  Store(const StoreOptions& options, StoreSeams seams, std::string secret,
        std::shared_ptr<HostArena> arena, std::unique_ptr<DiskTier> disk);
  ~Store() override;
  void StartThreads();  // starts the threads for upkeep and for the scrub

  absl::StatusOr<std::unique_ptr<FetchSession>> Fetch(const PrefixQuery& query,
                                                      uint32_t above_tokens,
                                                      uint32_t max_tokens) override {
    return fetcher_.Fetch(query, above_tokens, max_tokens);
  }
  Peeked Peek(const PrefixQuery& query, uint32_t max_tokens) override {
    return fetcher_.Peek(query, max_tokens);
  }
  absl::StatusOr<std::unique_ptr<FetchSession>> FetchById(const Digest& id,
                                                          const std::string& tenant) override {
    return fetcher_.FetchById(id, tenant);
  }
  absl::StatusOr<std::unique_ptr<PublishSession>> Publish(PublishSpec spec) override;
  absl::StatusOr<ClaimDecision> Claim(const PrefixQuery& query, ClaimRequest ask) override {
    return claims_.Claim(query, std::move(ask));
  }
  void Observe(const Fingerprint& fingerprint, const std::string& tenant) override;
  absl::StatusOr<ExplainReport> Explain(const PrefixQuery& query) override {
    return explainer_.Explain(query);
  }
  absl::StatusOr<RestorePoint> SetPinned(const Digest& id, const std::string& tenant,
                                         bool pinned) override;
  absl::StatusOr<DropResult> Drop(const Digest& id, const std::string& tenant, bool force) override;
  absl::StatusOr<DropResult> DropAll(const std::string& tenant, bool force) override;
  absl::StatusOr<DropResult> RaiseDropNumber(const std::string& tenant, uint64_t number,
                                             bool force) override;
  uint64_t DropNumber(const std::string& tenant) override { return core_->drop_numbers.Of(tenant); }
  absl::StatusOr<QuarantineResult> Quarantine(const PrefixQuery& query,
                                              absl::Span<const ObjectId> objects) override {
    return quarantiner_.Quarantine(query, objects);
  }
  std::vector<RestorePoint> List(const std::string& tenant) override;
  std::vector<RestorePoint> Hottest(size_t limit) override;
  StoreStats Stats() override;
  TenantFigures StatsOf(const std::string& tenant) override;
  std::optional<SharedMemory> shared_memory() const override;
  std::optional<SharedMemory> shared_device() const override;
  std::shared_ptr<std::byte> AllocateSlice(size_t bytes) override;
  void WaitForMemory() override;
  WatchStart Subscribe(const std::string& tenant, const WatchFrom& from,
                       EventCallback callback) override;
  std::optional<ChunkRun> ChunksOf(const Digest& id, const std::string& tenant, uint32_t first,
                                   uint32_t most_tokens) override;
  absl::StatusOr<BackupReport> BackUp(const std::string& to) override;
  absl::Status Flush(absl::Time deadline) override;

  // Background steps. A test that passes its own executor calls them itself, each from one thread
  // at a time. Both return the pause before the next call.
  //
  // ScrubStep reads the next slice on disk, if it is due.
  absl::Duration ScrubStep() { return scrubber_.Step(); }
  // Does one step of upkeep: removes some expired restore points, measures the disk's volume, and
  // from time to time writes the times of last use to disk.
  absl::Duration UpkeepStep() ABSL_LOCKS_EXCLUDED(core_->mu);
  StoreCore* core() { return core_.get(); }
  VolumeWatch* volume() { return &volume_; }

 private:
  absl::Status PinLocked(const Digest& id, const std::string& tenant, bool pinned,
                         RestorePoint* described, uint64_t* durable_number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Drops the tenant's restore points with numbers below `end`. Releases the lock between two
  // points.
  DropResult DropPointsOf(const std::string& tenant, uint64_t end, bool force)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Returns an error that names the tenant's pinned restore points, if there are any and !force.
  absl::Status CheckUnpinned(const std::string& tenant, bool force)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  // Writes a batch of last uses to disk. Returns true if there may be more.
  bool NoteUses() ABSL_LOCKS_EXCLUDED(core_->mu);
  // Returns descriptions of the restore points, least recently used first, without points that are
  // removed during the call. Releases the lock between two points.
  std::vector<RestorePoint> DescribeInSteps(std::vector<Catalog::PointName> names)
      ABSL_LOCKS_EXCLUDED(core_->mu);

  const uint64_t incarnation_;
  const std::unique_ptr<StoreCore> core_;
  absl::Time uses_noted_;  // when last uses were written; used only by UpkeepStep's thread
  // taken before core_->mu; makes saved drop numbers appear on disk in order
  absl::Mutex notes_mu_;
  DiskWriter writer_;
  Quarantiner quarantiner_;
  Promoter promoter_;
  Fetcher fetcher_;
  ClaimHandler claims_;
  PromptExplainer explainer_;
  Scrubber scrubber_;
  VolumeWatch volume_;
  // the last member, because the threads use the other members
  std::vector<std::unique_ptr<RepeatingThread>> threads_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_STORE_H_
