// VolumeBudget: how many bytes of its volume the disk tier may use, and the resulting limit of
// stored bytes.
//
// The files may use nine tenths of the room: the bytes of the tier's own files plus the free bytes.
// The limit of stored bytes is lower by what RocksDB needs in addition: logs, erased bytes in
// files, and tables being rewritten. More room counts at once. Less room counts only after
// kPatience, so that a program that fills the volume briefly costs no restore points. If lowering
// the budget freed no room, the budget stays: erasing more would not help. Not thread safe.
//
// Invariants:
//  1. limit_bytes() is at most the requested limit.
//  2. If the volume has room for the requested limit, limit_bytes() equals it.
#ifndef HEARTH_CACHE_STORE_DISK_VOLUME_BUDGET_H_
#define HEARTH_CACHE_STORE_DISK_VOLUME_BUDGET_H_

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/time/time.h"

namespace hearth {

// Bytes of a volume: used by the data folder's files, free for this process, and in total.
struct DiskRoom {
  uint64_t own_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t volume_bytes = std::numeric_limits<uint64_t>::max();  // UINT64_MAX: unknown

  // Upper bound of the data folder's files.
  uint64_t FilesBytes() const;
};

// Size of RocksDB's log at which a flush begins, if all files may use `files_bytes`.
uint64_t LogBytesFor(uint64_t files_bytes);
// Upper bound of stored bytes so that all files stay below `files_bytes`.
uint64_t StoredBytesFor(uint64_t files_bytes);

class VolumeBudget {
 public:
  static constexpr absl::Duration kPatience = absl::Minutes(5);

  // `wanted_bytes`: the requested limit.
  explicit VolumeBudget(uint64_t wanted_bytes);

  // Sets the first budget of a run. Call before the first Update(). `noted_bytes`: files_bytes() of
  // an earlier run; 0: unknown. `room`: nullopt if not measurable. If the measured room is less
  // than noted, it counts at once only if it costs no restore point and the volume is smaller than
  // the noted bytes (so it is another volume). If nothing was noted, the measurement counts at once
  // if it costs no restore point, or if the store's own files fill the volume.
  void Begin(uint64_t noted_bytes, const std::optional<DiskRoom>& room);
  void Update(const DiskRoom& room, absl::Time now);
  // Lowers the limit: the files use more than files_bytes() although erased bytes were freed.
  void Squeeze(uint64_t bytes);
  // Undoes a part of Squeeze: the files have stayed well below files_bytes().
  void Relax() { squeezed_bytes_ -= squeezed_bytes_ / 8 + (squeezed_bytes_ > 0 ? 1 : 0); }

  uint64_t files_bytes() const { return files_bytes_; }
  uint64_t limit_bytes() const;
  // True: files_bytes() was lowered and the files shrank, but the volume gained no room. The budget
  // is not lowered further until there is more room.
  bool is_stuck() const { return is_stuck_; }
  // True: the volume has no room for the requested limit.
  bool is_limited() const;
  // True: `free_bytes` alone have room for the requested limit.
  bool IsAmple(uint64_t free_bytes) const;

 private:
  void Lower(const DiskRoom& room);

  const uint64_t wanted_bytes_;
  const uint64_t ample_bytes_;  // more room than this makes no difference
  uint64_t files_bytes_;
  uint64_t previous_bytes_ = std::numeric_limits<uint64_t>::max();  // measured by the last Update()
  uint64_t highest_bytes_ = 0;                                      // maximum since less_since_
  absl::Time less_since_ = absl::InfiniteFuture();
  uint64_t squeezed_bytes_ = 0;
  std::optional<DiskRoom>
      lowered_;  // room when files_bytes_ was last lowered; nullopt: never, or raised since
  uint64_t highest_free_bytes_ = 0;  // maximum since lowered_
  bool is_stuck_ = false;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_VOLUME_BUDGET_H_
