// PointCount: the restore points in a store's database. Their number is also saved in a small file
// next to the database, so that a start can report how many restore points were lost to damage.
//
// Format of DIR/points, little endian, u64 each: number of points, number of the last drop, the
// machine's boot id, XXH3-64 of these. Each change writes the file without a sync, so after a
// machine crash the count is only a hint, used if damage is found. The number of the last drop is
// synced before the drop is acknowledged: a database with a smaller number would restore dropped
// points. Thread safe.
#ifndef HEARTH_CACHE_STORE_DISK_POINT_COUNT_H_
#define HEARTH_CACHE_STORE_DISK_POINT_COUNT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace hearth {

using BootId = uint64_t;  // XXH3-64 of the text of the machine's boot id
BootId ThisBoot();

class PointCount {
 public:
  struct Noted {
    uint64_t points = 0, drops = 0;
    BootId boot = 0;
  };
  // Reads the saved file; returns zeros if it is absent or damaged.
  static Noted Read(const std::string& dir);

  static absl::StatusOr<std::unique_ptr<PointCount>> Open(const std::string& dir);
  ~PointCount();
  PointCount(const PointCount&) = delete;
  PointCount& operator=(const PointCount&) = delete;

  Noted noted() const;
  // Starts with the restore points that the opened database contains. `drops`: number of the last
  // drop in the database; a higher number in the saved file is kept.
  void Begin(absl::Span<const uint64_t> numbers, uint64_t drops, BootId boot);
  // Call after restore points were committed. Points that are counted already are not counted
  // again; `replaced` points are no longer counted.
  void Add(absl::Span<const uint64_t> numbers, absl::Span<const uint64_t> replaced = {});
  // Call before restore points are erased. Returns those of `numbers` that were counted.
  std::vector<uint64_t> Remove(absl::Span<const uint64_t> numbers);
  // Saves the number of the last drop, on stable storage on return.
  absl::Status NoteDrops(uint64_t drops);

 private:
  PointCount(int file, const Noted& noted) : file_(file), now_(noted) {}
  absl::Status Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int file_;
  mutable absl::Mutex mu_;
  absl::flat_hash_set<uint64_t> numbers_ ABSL_GUARDED_BY(mu_);
  Noted now_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_POINT_COUNT_H_
