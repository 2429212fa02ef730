// SteppedSeams: lets a test control when a store's background jobs run, and its clock.
#ifndef HEARTH_TESTS_SUPPORT_STEPPED_SEAMS_H_
#define HEARTH_TESTS_SUPPORT_STEPPED_SEAMS_H_

#include <memory>
#include <utility>

#include "cache_store/catalog/stored_object.h"
#include "cache_store/store/calls/store.h"
#include "tests/support/fake_clock.h"
#include "tests/support/manual_executor.h"
#include "tests/support/store_kit.h"

namespace hearth {

// Returns seams for a store. `*executor` becomes the store's executor, which lives as long as the
// store. `clock`: null stands for the system's clock.
inline StoreSeams SteppedSeams(ManualExecutor** executor, Clock* clock = nullptr) {
  auto made = std::make_unique<ManualExecutor>();
  *executor = made.get();
  StoreSeams seams;
  seams.clock = clock;
  seams.executor = std::move(made);
  seams.disk.pause = absl::ZeroDuration();
  seams.disk.wait = [](absl::Duration) {};
  return seams;
}

// Fetches a prompt `times` times. Advances the clock before each fetch, so that the store no longer
// hides objects of the prompt.
inline void FetchAgain(TieredStore* store, const Fingerprint& model, const KitPrompt& prompt,
                       FakeClock* clock, int times) {
  for (int i = 0; i < times; ++i) {
    clock->Advance(StoredObject::kLongestHidden);
    KitFetch(store, model, prompt).status().IgnoreError();
  }
}

inline void ScrubForAWhile(TieredStore* store, FakeClock* clock) {
  for (int second = 0; second < 40; ++second) {
    clock->Advance(absl::Seconds(1));
    static_cast<Store*>(store)->ScrubStep();
  }
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_STEPPED_SEAMS_H_
