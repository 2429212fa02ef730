// Eraser: erases what the catalog removed: RAM copies at once, under the store's lock; copies on
// disk later, under none.
//
// Thread safe. Errors: a failed erase is counted, and tried again with the next and at the store's
// end. Ownership: borrows all that it is given.
#ifndef HEARTH_CACHE_STORE_STORE_ERASER_H_
#define HEARTH_CACHE_STORE_STORE_ERASER_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cache_store/base/executor.h"
#include "cache_store/base/stats.h"
#include "cache_store/store/store_state.h"
#include "cache_store/store/store_tiers.h"

namespace hearth {

class Eraser {
 public:
  // The work that CarryOut leaves for Finish.
  struct Rest {
    bool in_host = false, on_disk = false;
  };

  Eraser(uint64_t disk_limit_bytes, StoreTiers* tiers, StoreState* state, Counters* counters)
      : disk_limit_bytes_(disk_limit_bytes), tiers_(tiers), state_(state), counters_(counters) {}
  // Before any other method. `reclaimer`: for work that takes minutes; null: `executor` does it.
  void Start(Executor* executor, std::unique_ptr<Executor> reclaimer);
  // Waits until the reclaimer has stopped; the tier must have been told to stop reclaiming.
  void Stop() { reclaimer_.reset(); }

  // Erases from RAM and the device, and notes what is to be erased from the disk.
  Rest CarryOut(const Garbage& garbage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  // Finishes it in the background, or in this thread when the executor is full.
  void Finish(const Rest& rest) ABSL_LOCKS_EXCLUDED(state_->mu);
  // Erases everything noted so far from the disk, and `orphans`: objects of a failed write, whose
  // keys the caller has claimed.
  absl::Status EraseFromDisk(absl::Span<const uint64_t> orphans = {})
      ABSL_LOCKS_EXCLUDED(state_->mu);
  // As EraseFromDisk; what was erased stays so, whatever is damaged later.
  absl::Status EraseForGood() ABSL_LOCKS_EXCLUDED(state_->mu);
  // The same for the last time: nothing is reclaimed.
  absl::Status EraseAtEnd() ABSL_LOCKS_EXCLUDED(state_->mu);

 private:
  absl::Status EraseNoted(absl::Span<const uint64_t> orphans, uint64_t* erased_bytes)
      ABSL_LOCKS_EXCLUDED(state_->mu);
  void ReclaimLater(uint64_t erased_bytes) ABSL_LOCKS_EXCLUDED(state_->mu);
  void Reclaim() ABSL_LOCKS_EXCLUDED(state_->mu);

  const uint64_t disk_limit_bytes_;
  StoreTiers* const tiers_;
  StoreState* const state_;
  Counters* const counters_;
  Executor* executor_ = nullptr;
  std::unique_ptr<Executor> reclaimer_;
  uint64_t unreclaimed_bytes_ ABSL_GUARDED_BY(state_->mu) = 0;  // erased, but maybe still in files
  bool reclaim_queued_ ABSL_GUARDED_BY(state_->mu) = false;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_ERASER_H_
