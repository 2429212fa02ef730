// StoreSeams: parts of a store's environment that tests replace. Private to cache_store/ and its
// tests.
#ifndef HEARTH_CACHE_STORE_STORE_STORE_SEAMS_H_
#define HEARTH_CACHE_STORE_STORE_STORE_SEAMS_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "cache_store/base/clock.h"
#include "cache_store/base/executor.h"
#include "cache_store/base/tier.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/store/options.h"
#include "cache_store/store/tiered_store.h"

namespace hearth {

// A null member stands for the real implementation.
struct StoreSeams {
  using WrapTier = std::function<std::unique_ptr<SliceTier>(SliceTier*)>;

  Clock* clock = nullptr;
  std::unique_ptr<Executor> executor;
  WrapTier wrap_disk;  // wraps the disk tier; the store verifies reads through the wrapper
  // options of the disk tier; fields that follow from the store's options are overwritten
  DiskTierOptions disk;
  uint64_t min_table_bytes = DiskTier::kMinTableBytes;
};

// Opens a store like TieredStore::Open, with replaced parts. Returns a Store (calls/store.h).
absl::StatusOr<std::unique_ptr<LocalStore>> OpenStore(const StoreOptions& options,
                                                      StoreSeams seams);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_SEAMS_H_
