// VolumeBudget: computes how many bytes of its volume the disk tier's files may use, and from that
// the limit of stored bytes.
//
// The files may use nine tenths of the usable space: the bytes of the tier's own files plus the
// free bytes of the volume. The limit of stored bytes is lower by the space that RocksDB needs in
// addition: logs, erased bytes in files, and tables that are being rewritten. If the usable space
// grows, the budget follows at once. If it shrinks, the budget follows only after kPatience, so
// that a program that fills the volume for a short time costs no restore points. If lowering the
// budget freed no space, the budget is not lowered again. Not thread safe.
//
// Invariants:
//  1. limit_bytes() is at most the requested limit.
//  2. If the volume has space for the requested limit, limit_bytes() equals it.
#ifndef HEARTH_CACHE_STORE_DISK_VOLUME_BUDGET_H_
#define HEARTH_CACHE_STORE_DISK_VOLUME_BUDGET_H_

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/time/time.h"

namespace hearth {

// Bytes of a volume: used by the data folder's files (own_bytes), free for this process, and in
// total.
struct DiskRoom {
  uint64_t own_bytes = 0;
  uint64_t free_bytes = 0;
  // size of the volume; UINT64_MAX: unknown
  uint64_t volume_bytes = std::numeric_limits<uint64_t>::max();

  // Returns how many bytes the data folder's files may use.
  uint64_t FilesBytes() const;
};

// Returns the size of RocksDB's log at which a flush begins, if all files may use `files_bytes`.
uint64_t LogBytesFor(uint64_t files_bytes);
// Returns the limit of stored bytes with which all files stay below `files_bytes`.
uint64_t StoredBytesFor(uint64_t files_bytes);

class VolumeBudget {
 public:
  static constexpr absl::Duration kPatience = absl::Minutes(5);

  // `wanted_bytes`: the limit of stored bytes that the operator requested.
  explicit VolumeBudget(uint64_t wanted_bytes);

  // Sets the budget when the store starts. Call before the first Update(). `noted_bytes`:
  // files_bytes() that an earlier run saved; 0: none. `room`: the measured volume; nullopt if
  // measuring is impossible. A measurement below the saved budget counts at once only if no restore
  // point must be evicted for it and the volume is smaller than the saved budget (so it is another
  // volume). If nothing was saved, the measurement counts at once if no restore point must be
  // evicted for it, or if the store's own files fill the volume.
  void Begin(uint64_t noted_bytes, const std::optional<DiskRoom>& room);
  void Update(const DiskRoom& room, absl::Time now);
  // Lowers the limit of stored bytes by `bytes`. Call if the files use more than files_bytes()
  // although erased bytes were reclaimed.
  void Squeeze(uint64_t bytes);
  // Raises the limit of stored bytes by a part of what Squeeze() took. Call if the files have
  // stayed well below files_bytes().
  void Relax() { squeezed_bytes_ -= squeezed_bytes_ / 8 + (squeezed_bytes_ > 0 ? 1 : 0); }

  uint64_t files_bytes() const { return files_bytes_; }
  uint64_t limit_bytes() const;
  // Returns true if files_bytes() was lowered and the files shrank, but the volume gained no free
  // space. The budget is then not lowered further until there is more space.
  bool is_stuck() const { return is_stuck_; }
  // Returns whether the volume is too small for the requested limit.
  bool is_limited() const;
  // Returns whether `free_bytes` alone, without the files' own bytes, suffice for the requested
  // limit.
  bool IsAmple(uint64_t free_bytes) const;

 private:
  void Lower(const DiskRoom& room);

  const uint64_t wanted_bytes_;
  const uint64_t ample_bytes_;  // more usable space than this makes no difference
  uint64_t files_bytes_;
  // usable bytes measured by the last Update()
  uint64_t previous_bytes_ = std::numeric_limits<uint64_t>::max();
  uint64_t highest_bytes_ = 0;  // highest measured usable bytes since less_since_
  absl::Time less_since_ = absl::InfiniteFuture();
  uint64_t squeezed_bytes_ = 0;
  // measurement when files_bytes_ was last lowered; nullopt: never lowered, or raised since
  std::optional<DiskRoom> lowered_;
  uint64_t highest_free_bytes_ = 0;  // highest free bytes since lowered_ was set
  bool is_stuck_ = false;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_VOLUME_BUDGET_H_
