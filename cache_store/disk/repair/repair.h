// Repairs a stopped store's data folder: makes a new database from everything that the files of the
// old one still prove (salvage.h), and replaces it.
//
// The old database is only read. The new one is made beside it, checked slice by slice, and put in
// its place by one exchange of two names: whenever the process or the machine dies, the folder is
// either as it was or repaired. The old database is kept until somebody removes it.
#ifndef HEARTH_CACHE_STORE_DISK_REPAIR_REPAIR_H_
#define HEARTH_CACHE_STORE_DISK_REPAIR_REPAIR_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace rocksdb {
class Env;
}

namespace hearth {

struct RepairOptions {
  std::string to;           // a new data folder; empty: the folder itself is repaired
  std::string secret_file;  // empty: the secret is in the folder
  bool dry_run = false;     // only says what it would do
  std::function<void(const std::string&)> on_progress;  // told what is done next; may be empty
  // A test's, in front of the file system and of the clock.
  rocksdb::Env* env = nullptr;
  absl::Time now = absl::Now();
};

struct RepairReport {
  static constexpr size_t kMaxNamed = 100;  // lines of each list; more are counted

  bool was_healthy = false;  // nothing was done: a store can open it, and will find everything
  uint64_t restore_points = 0, objects = 0, slices = 0, slice_bytes = 0;  // kept
  uint64_t lost_points = 0, expired_points = 0;
  // Of those kept: found in lost/ alone, where promises had rotted. Some may have been dropped
  // before.
  uint64_t unnamed_points = 0;
  std::vector<std::string> lost;  // a line each
  uint64_t damaged_files = 0;
  std::vector<std::string> damage;
  uint64_t linked_bytes = 0, copied_bytes = 0;  // of slices: in tables taken over, and written anew
  std::string folder;                           // the data folder with the new database
  std::string old_database;                     // where the damaged one is now
  bool has_secret = true;                       // false: neither in the folder nor given
};

// kFailedPrecondition: no data folder, in use, of a newer version, or the secret is needed and not
// there. kResourceExhausted: not enough room; nothing was changed.
absl::StatusOr<RepairReport> RepairDataDir(const std::string& dir, const RepairOptions& options);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_REPAIR_REPAIR_H_
