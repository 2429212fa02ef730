// VolumeWatch: keeps the disk tier's files within what their volume has.
//
// It measures the volume, sets the limit of stored bytes (volume_budget.h), and evicts restore
// points until the limit holds. While the files use more than their budget, it has erased bytes
// given back, and if that is not enough once they have been, lowers the limit further. The last
// budget is noted on disk: if other programs have filled the volume before a start, the start
// evicts nothing.
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

  // Sets the limit before the index is read.
  void Begin() ABSL_LOCKS_EXCLUDED(core_->mu);
  // Measures if it is time to. May write to the disk.
  void Step() ABSL_LOCKS_EXCLUDED(core_->mu);
  // The pause after a step whose measurement took `measuring`.
  static absl::Duration PauseAfter(absl::Duration measuring);

 private:
  // Sets the limit, and says so when it has changed.
  void SetLimit(const DiskRoom& room) ABSL_LOCKS_EXCLUDED(core_->mu);
  void SayLimit(const DiskRoom& room, uint64_t stored_bytes);
  void NoteBudget(const DiskRoom& room);
  // `last_reclaim`: StoreCore's, before `room` was measured.
  void GiveBack(const DiskRoom& room, uint64_t last_reclaim) ABSL_LOCKS_EXCLUDED(core_->mu);

  StoreCore* const core_;
  VolumeBudget budget_;
  absl::Time next_ = absl::InfinitePast();
  uint64_t said_bytes_ = 0;         // the limit in the last line; 0: none, or not limited
  uint64_t noted_bytes_ = 0;        // the budget on disk
  bool said_stays_ = false;         // that evictions cannot bring the store within its limit
  bool said_stuck_ = false;         // that a lower budget gave no room back
  bool is_over_ = false;            // the files were seen to use too much
  bool erases_wait_ = false;        // at the last step: the disk took no erase
  uint64_t awaited_reclaim_ = 0;    // StoreCore::last_reclaim from which on erases are given back
  uint64_t squeeze_bytes_ = 0;      // of the last squeeze since the files used too much
  uint64_t squeezed_at_bytes_ = 0;  // what the files used then
  bool gave_up_reserve_ = false;    // and nothing was given back since
  uint64_t reclaims_before_ = 0;    // when it did
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_VOLUME_WATCH_H_
