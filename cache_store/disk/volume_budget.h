// VolumeBudget: how many bytes of its volume the disk tier may use, and which limit of stored bytes
// follows from that.
//
// The files may use nine tenths of the room: of the bytes that the tier's own files use and the
// bytes that are free. The limit of stored bytes is lower than that by what RocksDB needs besides:
// its logs, erased bytes in files, and tables that are being rewritten. More room counts at once.
// Less room counts only after kPatience: a program that fills the volume for a moment must not cost
// restore points. If a lower budget gave no room back, the budget stays: to erase more would not
// help. Not thread safe.
//
// Invariants:
//  1. limit_bytes() is at most the limit that was asked for.
//  2. Where the volume has room for the limit that was asked for, limit_bytes() is that limit.
#ifndef HEARTH_CACHE_STORE_DISK_VOLUME_BUDGET_H_
#define HEARTH_CACHE_STORE_DISK_VOLUME_BUDGET_H_

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/time/time.h"

namespace hearth {

// Bytes of a volume: of the data folder's files, free for this process, and of the whole volume.
struct DiskRoom {
  uint64_t own_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t volume_bytes = std::numeric_limits<uint64_t>::max();  // the largest number: unknown

  // Most bytes that the data folder's files should use.
  uint64_t FilesBytes() const;
};

// At which size of RocksDB's log a flush begins, where all files may use `files_bytes`.
uint64_t LogBytesFor(uint64_t files_bytes);
// Most bytes that the store may keep, so that all files stay below `files_bytes`.
uint64_t StoredBytesFor(uint64_t files_bytes);

class VolumeBudget {
 public:
  static constexpr absl::Duration kPatience = absl::Minutes(5);

  // `wanted_bytes`: the limit that was asked for.
  explicit VolumeBudget(uint64_t wanted_bytes);

  // The first budget of a run. Call before the first Update. `noted_bytes`: files_bytes() of an
  // earlier run; 0: none is known. `room`: none if it could not be measured. If less room is
  // measured than was noted, the measurement counts at once only if it costs no restore point and
  // the volume is smaller than the noted bytes, so that it is another volume. If nothing was noted,
  // the measurement counts at once if it costs no restore point, or if the store's own files fill
  // the volume.
  void Begin(uint64_t noted_bytes, const std::optional<DiskRoom>& room);
  void Update(const DiskRoom& room, absl::Time now);
  // The files use more than files_bytes() though erased bytes were given back: lowers the limit.
  void Squeeze(uint64_t bytes);
  // The files have stayed well below files_bytes(): undoes a part of Squeeze.
  void Relax() { squeezed_bytes_ -= squeezed_bytes_ / 8 + (squeezed_bytes_ > 0 ? 1 : 0); }

  uint64_t files_bytes() const { return files_bytes_; }
  uint64_t limit_bytes() const;
  // True: files_bytes() was lowered, the files gave their bytes back, and no room came of it, so
  // that the budget is not lowered any further. Ends when there is more room.
  bool is_stuck() const { return is_stuck_; }
  // True: the volume has no room for the limit that was asked for.
  bool is_limited() const;
  // True: with `free_bytes` alone there is room for the limit that was asked for.
  bool IsAmple(uint64_t free_bytes) const;

 private:
  void Lower(const DiskRoom& room);

  const uint64_t wanted_bytes_;
  const uint64_t ample_bytes_;  // more than this is of no use
  uint64_t files_bytes_;
  uint64_t previous_bytes_ = std::numeric_limits<uint64_t>::max();  // as the last Update measured
  uint64_t highest_bytes_ = 0;                                      // since `less_since_`
  absl::Time less_since_ = absl::InfiniteFuture();
  uint64_t squeezed_bytes_ = 0;
  std::optional<DiskRoom> lowered_;  // when files_bytes_ was last lowered; none: or raised since
  uint64_t highest_free_bytes_ = 0;  // since `lowered_`
  bool is_stuck_ = false;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_VOLUME_BUDGET_H_
