// DeviceCopier: copies to the gpu tier what is fetched from RAM or disk again and again.
//
// Thread safe. Ownership: borrows the core; owns the executor that copies. What it does not come to
// is counted, and stays in RAM.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_DEVICE_COPIER_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_DEVICE_COPIER_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "cache_store/base/executor.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class DeviceCopier {
 public:
  // Copies may come by the hundred: nothing is to wait behind them. `executor` null: the core's.
  DeviceCopier(StoreCore* core, std::unique_ptr<Executor> executor)
      : core_(core), state_(&core->state), executor_(std::move(executor)) {}
  // Waits until what was accepted is done. No method may be called after.
  void Stop() { executor_.reset(); }

  // A session ends that read the object from RAM or disk. REQUIRES: held.
  void NoteFetched(const StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

 private:
  void Copy(uint64_t number) ABSL_LOCKS_EXCLUDED(state_->mu);

  StoreCore* const core_;
  StoreState* const state_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_DEVICE_COPIER_H_
