// TieredStore: a cache node's store as a server sees it: a reader, a publisher and an admin.
//
// A store keeps objects in a bounded host tier and a bounded disk tier. Restore points are the unit
// of visibility and eviction. LocalStore is the store of one machine; ForwardingStore is the base
// of a tier in front of it. Thread safety: all methods from any thread.
#ifndef HEARTH_CACHE_STORE_STORE_TIERED_STORE_H_
#define HEARTH_CACHE_STORE_STORE_TIERED_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cache_store/store/options.h"
#include "cache_store/store/store_admin.h"
#include "cache_store/store/store_publisher.h"
#include "cache_store/store/store_reader.h"

namespace hearth {

class LocalStore;

class TieredStore : public StoreReader, public StorePublisher, public StoreAdmin {
 public:
  // Opens or creates the data folder, rebuilds the index from its manifests, and erases objects
  // that no manifest names. kFailedPrecondition: another process holds the folder, or its version
  // is newer. kDataLoss: the folder cannot be read at all.
  static absl::StatusOr<std::unique_ptr<LocalStore>> Open(const StoreOptions& options);
};

// The store of one machine. The methods declared here are for a tier in front of it.
class LocalStore : public TieredStore {
 public:
  // The stored tokens of a prompt, in the tenant's own and in the public namespace, and the key
  // chains used to find them. Not a lookup: counts nothing and does not affect eviction.
  struct Peeked {
    uint32_t own = 0, of_public = 0;
    std::vector<ChainPtr> chains;
  };
  virtual Peeked Peek(const PrefixQuery& query, uint32_t max_tokens) = 0;
  // If the tenant's drop number is smaller than `number`, drops all its entries as DropAll does;
  // else does nothing. Later entries are stored under the new number, which survives restarts, and
  // entries with a smaller number are never found. If the disk fails, all entries were dropped but
  // may reappear after a crash.
  virtual absl::StatusOr<DropResult> RaiseDropNumber(const std::string& tenant, uint64_t number,
                                                     bool force) = 0;
  virtual uint64_t DropNumber(const std::string& tenant) = 0;  // 0: none
  // Returns uninitialised memory for a slice of a future publish: its final place, if there is
  // room.
  virtual std::shared_ptr<std::byte> AllocateSlice(size_t bytes) = 0;
  // Waits until the memory for the next publishes is ready. For tests and benchmarks.
  virtual void WaitForMemory() = 0;
};

// Base of a tier in front of a store: forwards the calls that the tier does not change. Ownership:
// borrows the store.
class ForwardingStore : public TieredStore {
 public:
  explicit ForwardingStore(StoreAdmin* behind) : behind_(behind) {}

  absl::StatusOr<RestorePoint> SetPinned(const Digest& id, const std::string& tenant,
                                         bool pinned) override {
    return behind_->SetPinned(id, tenant, pinned);
  }
  std::vector<RestorePoint> List(const std::string& tenant) override {
    return behind_->List(tenant);
  }
  std::vector<RestorePoint> Hottest(size_t limit) override { return behind_->Hottest(limit); }
  TenantFigures StatsOf(const std::string& tenant) override { return behind_->StatsOf(tenant); }
  std::optional<SharedMemory> shared_memory() const override { return behind_->shared_memory(); }
  std::optional<SharedMemory> shared_device() const override { return behind_->shared_device(); }
  WatchStart Subscribe(const std::string& tenant, const WatchFrom& from,
                       EventCallback callback) override {
    return behind_->Subscribe(tenant, from, std::move(callback));
  }
  std::optional<ChunkRun> ChunksOf(const Digest& id, const std::string& tenant, uint32_t first,
                                   uint32_t most_tokens) override {
    return behind_->ChunksOf(id, tenant, first, most_tokens);
  }
  absl::StatusOr<BackupReport> BackUp(const std::string& to) override {
    return behind_->BackUp(to);
  }

 private:
  StoreAdmin* const behind_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_TIERED_STORE_H_
