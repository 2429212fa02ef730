// VolumeWatch: keeps the disk tier's files within the space of their volume.
//
// It measures the volume, computes the limit of stored bytes (volume_budget.h), and evicts restore
// points until the limit is met. While the files exceed their budget, it reclaims erased bytes; if
// that does not suffice, it lowers the limit further. The budget is saved on disk, so that a start
// evicts nothing if other programs have filled the volume.
//
// Thread safety: for one thread at a time. Ownership: borrows the core. REQUIRES: a disk tier.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_VOLUME_WATCH_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_VOLUME_WATCH_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "cache_store/disk/volume_budget.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class VolumeWatch {
 public:
  static constexpr absl::Duration kEvery = absl::Seconds(1);

  explicit VolumeWatch(StoreCore* core) : core_(core), budget_(core->options.disk_bytes) {}

  // Sets the limit of stored bytes at start. Call before the index is loaded.
  void Begin() ABSL_LOCKS_EXCLUDED(core_->mu);
  // Measures the volume if a measurement is due, and adapts the limit. May write to disk.
  void Step() ABSL_LOCKS_EXCLUDED(core_->mu);
  // Returns the pause after a measurement that took the time `measuring`.
  static absl::Duration PauseAfter(absl::Duration measuring);

 private:
  // Sets the limit of stored bytes from the budget, and reports a change.
  void SetLimit(const DiskRoom& room) ABSL_LOCKS_EXCLUDED(core_->mu);
  void WarnLimit(const DiskRoom& room, uint64_t stored_bytes);
  void NoteBudget(const DiskRoom& room);
  // Frees space if the files exceed the budget. `last_reclaim`: value of StoreCore::last_reclaim
  // before `room` was measured.
  void GiveBack(const DiskRoom& room, uint64_t last_reclaim) ABSL_LOCKS_EXCLUDED(core_->mu);

  StoreCore* const core_;
  VolumeBudget budget_;
  absl::Time next_ = absl::InfinitePast();
  // limit that was last reported; 0: none, or the volume does not limit the store
  uint64_t said_bytes_ = 0;
  uint64_t noted_bytes_ = 0;  // the budget saved on disk
  bool said_stays_ = false;   // whether it was reported that evictions cannot meet the limit
  bool said_stuck_ = false;   // whether it was reported that lowering the budget freed no space
  bool is_over_ = false;      // whether the files exceeded the budget at the last measurement
  bool erases_wait_ = false;  // whether the erase of the last step failed
  uint64_t awaited_reclaim_ =
      0;  // value of StoreCore::last_reclaim from which on the erased bytes are reclaimed
  uint64_t squeeze_bytes_ = 0;      // bytes of the last squeeze since the files exceeded the budget
  uint64_t squeezed_at_bytes_ = 0;  // bytes of the files at the last squeeze
  // whether the reserve file was deleted and no reclaim has ended since
  bool gave_up_reserve_ = false;
  uint64_t reclaims_before_ = 0;  // value of StoreCore::reclaims when the reserve file was deleted
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_VOLUME_WATCH_H_
