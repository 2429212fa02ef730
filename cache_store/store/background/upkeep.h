// Upkeep: the periodic work of a store: removes expired restore points, and notes last uses on
// disk.
//
// An expired point is never served, however late it is removed. A lookup first removes a few; while
// more are left, only boundaries with a restore point of their own are usable (Fetcher).
// Thread safe but for Step, which one thread calls. Ownership: borrows the core.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_UPKEEP_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_UPKEEP_H_

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class Upkeep {
 public:
  explicit Upkeep(StoreCore* core)
      : core_(core), state_(&core->state), uses_noted_(core->clock->Now()) {}

  // SteppedStore::UpkeepStep.
  absl::Duration Step() ABSL_LOCKS_EXCLUDED(state_->mu);
  // Removes a few, on behalf of a call that does something else.
  void ExpireFew() ABSL_LOCKS_EXCLUDED(state_->mu);
  // True: some were noted, and there may be more.
  bool NoteUses() ABSL_LOCKS_EXCLUDED(state_->mu);

 private:
  // False: nothing had expired.
  bool ExpireSome(int most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

  StoreCore* const core_;
  StoreState* const state_;
  absl::Time uses_noted_;  // used by the thread of Step
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_UPKEEP_H_
