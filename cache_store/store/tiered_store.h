// TieredStore: a store as a server uses it: a reader, a publisher and an admin.
//
// A store keeps objects in a RAM tier and a disk tier of limited size. It makes restore points
// visible, and evicts them, as a whole. LocalStore is the store of one machine; ForwardingStore is
// the base class of a tier in front of it. Thread safety: all methods from any thread.
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
  // Opens a store: opens or creates the data folder, rebuilds the index from its manifests, and
  // erases objects that no manifest uses. kFailedPrecondition: another process has the folder open,
  // or the folder has a newer version. kDataLoss: the folder cannot be read at all.
  static absl::StatusOr<std::unique_ptr<LocalStore>> Open(const StoreOptions& options);
};

// The store of one machine. The methods declared here are for a tier in front of the store.
class LocalStore : public TieredStore {
 public:
  // What is stored of a prompt, in the tenant's own and in the public namespace, and the prompt's
  // keys. Not a lookup: counts nothing, and does not affect eviction.
  struct Peeked {
    uint32_t own = 0, of_public = 0;
    std::vector<ChainPtr> chains;
  };
  virtual Peeked Peek(const PrefixQuery& query, uint32_t max_tokens) = 0;
  // If the tenant's drop number is smaller than `number`, sets it to `number` and drops all entries
  // of the tenant, as DropAll does; otherwise does nothing. The new number survives restarts;
  // entries with a smaller number are never found. If the disk fails, all entries were dropped, but
  // may reappear after a crash.
  virtual absl::StatusOr<DropResult> RaiseDropNumber(const std::string& tenant, uint64_t number,
                                                     bool force) = 0;
  // returns the tenant's drop number; 0: none
  virtual uint64_t DropNumber(const std::string& tenant) = 0;
  // Returns uninitialised memory for a slice of a future publish: the slice's final place, if there
  // is space.
  virtual std::shared_ptr<std::byte> AllocateSlice(size_t bytes) = 0;
  // Waits until memory for the next publishes is ready. For tests and benchmarks.
  virtual void WaitForMemory() = 0;
};

// Base class of a tier in front of a store: forwards all calls that the tier does not change.
// Ownership: borrows the store.
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
