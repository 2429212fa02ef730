// A data folder of thirty restore points, for tests that damage it: slices in the records' own
// tables, in blob files, in tables of their own; of half of them the records are in the log.
#ifndef HEARTH_TESTS_CACHE_STORE_DISK_REPAIR_KIT_H_
#define HEARTH_TESTS_CACHE_STORE_DISK_REPAIR_KIT_H_

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cache_store/disk/disk_tier_db.h"
#include "cache_store/store/store_seams.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_kit.h"

namespace hearth {

inline constexpr int kRepairPoints = 30;

struct RepairPoint {
  Fingerprint model;
  KitPrompt prompt;
};

inline RepairPoint RepairPointOf(int point) {
  constexpr uint32_t kHeadDims[] = {2, 64, 1024};
  KitModel geometry;
  geometry.head_dim = kHeadDims[point % 3];
  geometry.layer_types = "llllg";
  return {geometry.Make(), {KitTokens(static_cast<uint64_t>(point) + 1, 65), {}}};
}

// An error says why it does not start.
inline absl::StatusOr<std::unique_ptr<TieredStore>> OpenRepaired(const std::string& dir) {
  StoreOptions options;
  options.data_dir = dir;
  options.host_bytes = 0;
  options.disk_bytes = uint64_t{1} << 30;
  ManualExecutor* executor = nullptr;
  return OpenStore(options, SteppedSeams(&executor));
}

inline void FillForRepair(const std::string& dir) {
  for (const int first : {0, kRepairPoints / 2}) {
    {
      const auto store = OpenRepaired(dir).value();
      for (int i = first; i < first + kRepairPoints / 2; ++i) {
        const RepairPoint point = RepairPointOf(i);
        if (!KitPublish(store.get(), point.model, point.prompt, {64}).ok()) std::abort();
      }
      const RestorePoint pinned = store->List("default").at(0);
      if (!store->SetPinned(pinned.id, "default", true).ok()) std::abort();
    }
    if (first > 0) break;
    std::unique_ptr<Database> db;
    if (!Database::Open(dir, Database::Mode::kOwn, &db).ok()) std::abort();
    if (!(*db)->Flush(rocksdb::FlushOptions(), db->families()).ok()) std::abort();
  }
}

// Whether a store has each of them, with the right bytes; `*wrong`: errors that must never be.
inline std::vector<bool> ServedPoints(TieredStore* store, std::string* wrong) {
  std::vector<bool> served;
  for (int i = 0; i < kRepairPoints; ++i) {
    const RepairPoint point = RepairPointOf(i);
    const absl::StatusOr<uint32_t> usable = KitFetch(store, point.model, point.prompt);
    if (!usable.ok()) *wrong += usable.status().ToString() + "\n";
    served.push_back(usable.ok() && *usable == 64);
  }
  return served;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_CACHE_STORE_DISK_REPAIR_KIT_H_
