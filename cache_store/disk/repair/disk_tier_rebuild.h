// Rebuild: writes a new database from the salvaged parts of another. Private to disk/.
#ifndef HEARTH_CACHE_STORE_DISK_REPAIR_DISK_TIER_REBUILD_H_
#define HEARTH_CACHE_STORE_DISK_REPAIR_DISK_TIER_REBUILD_H_

#include <rocksdb/write_batch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cache_store/disk/disk_tier_db.h"
#include "cache_store/disk/disk_tier_tables.h"
#include "cache_store/disk/repair/salvage.h"

namespace hearth {

// Bytes of slices that a rebuild writes, and those in tables that it links as they are.
struct RebuildBytes {
  uint64_t copied = 0, linked = 0;
  uint64_t records = 0;
};

// `can_link`: tables can be linked into the new folder.
RebuildBytes BytesToRebuild(const SalvagedFolder& salvage, bool can_link);

class Rebuild {
 public:
  // `dir`: the new data folder, whose database is empty.
  Rebuild(const SalvagedFolder& salvage, const Database& db, const std::string& dir, bool can_link,
          SalvagedFolder::Progress progress);

  // Writes everything, on stable storage. `secret_check`: empty is none.
  absl::Status Run(const std::string& secret_check);

 private:
  struct Pending {
    std::string key, value;
  };

  absl::Status CopyFrom(const SalvageFile& file, int index);
  absl::Status CopySlice(absl::string_view key, absl::string_view stored);
  absl::Status FlushSlices();
  absl::Status WriteRecords(const std::string& secret_check);
  absl::Status Put(Family family, absl::string_view key, absl::string_view value);
  absl::Status WriteBatch(bool sync);

  const SalvagedFolder& salvage_;
  const Database& db_;
  SliceTables tables_;
  const bool can_link_;
  const SalvagedFolder::Progress progress_;
  std::vector<Pending> pending_;
  uint64_t pending_bytes_ = 0;
  rocksdb::WriteBatch batch_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_REPAIR_DISK_TIER_REBUILD_H_
