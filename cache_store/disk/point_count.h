// PointCount: which restore points a store's database holds, and how many, noted in a small file
// beside it, so that a start can say how many damage took.
//
// DIR/points, little endian, a u64 each: points, drops, the machine's boot, XXH3-64 of all that.
// The count is written with each change and not synced: after the machine stopped it counts as a
// hint, which is used only where damage is found. The number of the last drop is synced before the
// drop is answered: a database that has a lower one would bring back what was dropped. Thread safe.
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

using BootId = uint64_t;  // XXH3-64 of its name
BootId ThisBoot();

class PointCount {
 public:
  struct Noted {
    uint64_t points = 0, drops = 0;
    BootId boot = 0;
  };
  // Zeros where there is no file, or it is damaged.
  static Noted Read(const std::string& dir);

  static absl::StatusOr<std::unique_ptr<PointCount>> Open(const std::string& dir);
  ~PointCount();
  PointCount(const PointCount&) = delete;
  PointCount& operator=(const PointCount&) = delete;

  Noted noted() const;
  // What an opening of the database found; the number of drops that is noted may be higher.
  void Begin(absl::Span<const uint64_t> numbers, uint64_t drops, BootId boot);
  // After points were committed: those that were there before count once, and those that they
  // replace no more.
  void Add(absl::Span<const uint64_t> numbers, absl::Span<const uint64_t> replaced = {});
  // Before points are erased. Which of them counted.
  std::vector<uint64_t> Remove(absl::Span<const uint64_t> numbers);
  // On stable storage when it returns.
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
