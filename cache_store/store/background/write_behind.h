// WriteBehind: writes restore points that are only in RAM to the disk, in the background.
//
// Thread safe. When the queue is full, that is counted and the restore point stays in RAM only.
// Ownership: borrows the core and the writer; its jobs run in the core's executor.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_WRITE_BEHIND_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_WRITE_BEHIND_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "cache_store/store/background/manifest_writer.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class WriteBehind {
 public:
  WriteBehind(StoreCore* core, ManifestWriter* manifests)
      : core_(core), state_(&core->state), manifests_(manifests) {}

  // `bytes`: of their objects that are only in RAM until then.
  void Schedule(std::vector<Digest> points, uint64_t bytes) ABSL_LOCKS_EXCLUDED(state_->mu);
  // Between the two nothing is written: EndDeferring returns the points scheduled meanwhile.
  void BeginDeferring() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  const std::vector<Digest>& deferred() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu) {
    return deferred_;
  }
  std::vector<Digest> EndDeferring() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

 private:
  void Write(const Digest& id) ABSL_LOCKS_EXCLUDED(state_->mu);
  bool Prepare(const RestorePointEntry* point, Persisting* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

  StoreCore* const core_;
  StoreState* const state_;
  ManifestWriter* const manifests_;
  std::atomic<bool> is_deferring_{false};  // changed under the lock
  std::vector<Digest> deferred_ ABSL_GUARDED_BY(state_->mu);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_WRITE_BEHIND_H_
