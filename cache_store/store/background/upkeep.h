// Upkeep: what is done when its time comes rather than when somebody asks. Restore points that
// expired leave, and last uses are noted on disk.
//
// Nobody is served what expired, however late it is removed. A lookup first removes a few; while
// more are left, only boundaries with a restore point of their own are usable (PrefixFinder).
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
  // For a call that waits for something else.
  void ExpireFew() ABSL_LOCKS_EXCLUDED(state_->mu);
  // True: some, and there may be more.
  bool NoteUses() ABSL_LOCKS_EXCLUDED(state_->mu);

 private:
  // False: nothing had expired.
  bool ExpireSome(int most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

  StoreCore* const core_;
  StoreState* const state_;
  absl::Time uses_noted_;  // of whoever calls Step
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_UPKEEP_H_
