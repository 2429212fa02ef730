// StoreSeams: the surroundings of a store that tests replace. Private to cache_store/ and its
// tests. Plain values.
#ifndef HEARTH_CACHE_STORE_STORE_STORE_SEAMS_H_
#define HEARTH_CACHE_STORE_STORE_STORE_SEAMS_H_

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "cache_store/base/executor.h"
#include "cache_store/base/tier.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/store/options.h"
#include "cache_store/store/tiered_store.h"

namespace hearth {

// Null: the real thing.
struct StoreSeams {
  using WrapTier = std::function<std::unique_ptr<SliceTier>(SliceTier*)>;

  Clock* clock = nullptr;
  std::unique_ptr<Executor> executor;
  WrapTier wrap_disk;                // put in front of the tier, behind its verification
  rocksdb::Env* disk_env = nullptr;  // the file system under the disk tier
  uint64_t volume_bytes = 0;         // of its volume; 0: as the volume says
  std::optional<BootId> boot;        // of the machine under that
  absl::Duration disk_pause = DiskTierOptions::kPause;
  std::function<void(absl::Duration)> disk_wait;  // before it is read again at a start
  uint64_t min_table_bytes = DiskTier::kMinTableBytes;
};

// As TieredStore::Open; it is a Store (calls/store.h).
absl::StatusOr<std::unique_ptr<LocalStore>> OpenStore(const StoreOptions& options,
                                                      StoreSeams seams);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_SEAMS_H_
