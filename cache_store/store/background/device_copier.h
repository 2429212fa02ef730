// DeviceCopier: copies objects to the gpu tier that are often fetched from RAM or disk.
//
// Thread safe. Ownership: borrows the core; owns the executor that copies. An object that it cannot
// copy in time is counted, and stays in RAM.
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
  // An executor of its own, since hundreds of copies may be queued at once. Null: the core's.
  DeviceCopier(StoreCore* core, std::unique_ptr<Executor> executor)
      : core_(core), state_(&core->state), executor_(std::move(executor)) {}
  // Waits until all accepted copies are done. The last call.
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
