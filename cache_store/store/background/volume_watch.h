// VolumeWatch: keeps the disk tier's files within the space of their volume.
//
// It measures the volume, sets the limit of stored bytes (volume_budget.h), and evicts restore
// points until the limit is met. While the files exceed their budget, it reclaims erased bytes; if
// the files still exceed the budget after that, it lowers the limit further. The last budget is
// saved on disk: if other programs filled the volume before a start, the start evicts nothing.
//
// Thread safety: one thread at a time. Ownership: borrows the core. REQUIRES: a disk tier.
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

  // Sets the initial limit. Call before the index is read.
  void Begin() ABSL_LOCKS_EXCLUDED(core_->mu);
  // Measures the volume if a measurement is due. May write to disk.
  void Step() ABSL_LOCKS_EXCLUDED(core_->mu);
  // Returns the pause after a step whose measurement took `measuring`.
  static absl::Duration PauseAfter(absl::Duration measuring);

 private:
  // Sets the limit, and reports a change.
  void SetLimit(const DiskRoom& room) ABSL_LOCKS_EXCLUDED(core_->mu);
  void WarnLimit(const DiskRoom& room, uint64_t stored_bytes);
  void NoteBudget(const DiskRoom& room);
  // `last_reclaim`: StoreCore::last_reclaim before `room` was measured.
  void GiveBack(const DiskRoom& room, uint64_t last_reclaim) ABSL_LOCKS_EXCLUDED(core_->mu);

  StoreCore* const core_;
  VolumeBudget budget_;
  absl::Time next_ = absl::InfinitePast();
  uint64_t said_bytes_ = 0;   // last reported limit; 0: none, or not limited
  uint64_t noted_bytes_ = 0;  // the saved budget
  bool said_stays_ = false;   // reported: evictions cannot meet the limit
  bool said_stuck_ = false;   // reported: a lower budget freed no space
  bool is_over_ = false;      // the last measurement exceeded the budget
  bool erases_wait_ = false;  // the erase of the last step failed
  uint64_t awaited_reclaim_ =
      0;  // value of StoreCore::last_reclaim at which erased bytes are reclaimed
  uint64_t squeeze_bytes_ = 0;      // size of the last squeeze since the files exceeded the budget
  uint64_t squeezed_at_bytes_ = 0;  // bytes of the files at that squeeze
  bool gave_up_reserve_ = false;    // and no reclaim has ended since
  uint64_t reclaims_before_ = 0;    // StoreCore::reclaims at that time
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_VOLUME_WATCH_H_
