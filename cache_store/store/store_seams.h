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

class StoreCore;

// Null: the real thing.
struct StoreSeams {
  using WrapTier = std::function<std::unique_ptr<SliceTier>(SliceTier*)>;

  Clock* clock = nullptr;
  std::unique_ptr<Executor> executor;
  WrapTier wrap_disk;                // put in front of the tier, behind its verification
  rocksdb::Env* disk_env = nullptr;  // the file system under the disk tier
  std::optional<BootId> boot;        // of the machine under that
  absl::Duration disk_pause = DiskTierOptions::kPause;
  uint64_t min_table_bytes = DiskTier::kMinTableBytes;
};

// SteppedStore: a store whose background steps a test can run and inspect. OpenStore and
// TieredStore::Open return one.
class SteppedStore : public TieredStore {
 public:
  // Reads the next slice on disk, if it is time to; returns how long to wait before the next call.
  // One caller at a time: a thread of the store, unless a test gave the executor.
  virtual absl::Duration ScrubStep() = 0;
  // Removes some expired points, and now and then notes last uses on disk; returns how long to
  // wait. Called as ScrubStep.
  virtual absl::Duration UpkeepStep() = 0;
  virtual StoreCore* core() = 0;
};

absl::StatusOr<std::unique_ptr<TieredStore>> OpenStore(const StoreOptions& options,
                                                       StoreSeams seams);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_SEAMS_H_
