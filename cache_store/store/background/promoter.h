// Promoter: copies objects that were read from disk into RAM, and objects that are fetched often to
// the gpu tier, in the background.
//
// A session collects the slices of an object until it has read all of them, then passes them to the
// background executor, which frees RAM and inserts the object. So a fetch that ends early promotes
// only whole objects. Space is freed only by dropping RAM copies of objects that are also on disk,
// so no data is lost. If an object cannot be queued or copied to the device, this is counted, and
// the object stays where it is. Thread safe. Ownership: borrows the core. Jobs run in the core's
// executor; copies to the device run in the promoter's own executor.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_PROMOTER_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_PROMOTER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "cache_store/base/executor.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class Promoter {
 public:
  // `copier`: executor for copies to the device, with space for hundreds of queued copies. Null:
  // the core's executor.
  Promoter(StoreCore* core, std::unique_ptr<Executor> copier)
      : core_(core), copier_(std::move(copier)) {}
  // Waits until all accepted copies to the device are done. Must be the last call of this object.
  void StopCopying() { copier_.reset(); }

  // Returns false if RAM has no space for the restore point next to the objects that must stay: a
  // promotion would only evict everything else.
  bool MayPromote(const RestorePointEntry& point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Returns whether this reader should promote the object: it is not in RAM, no other reader
  // promotes it, and the memory of all promotions stays below its limit.
  bool Claim(StoredObject* object) ABSL_LOCKS_EXCLUDED(core_->mu);
  void Unclaim(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Queues the promotion of an object, and ends the claim when the promotion ends. REQUIRES: the
  // caller has claimed and holds the object; `views` are all of its slices.
  void Promote(StoredObject* object, std::vector<SliceView> views) ABSL_LOCKS_EXCLUDED(core_->mu);
  // Counts a fetch of the object. Call at the end of a session that read the object from RAM or
  // disk. REQUIRES: the caller holds the object.
  void NoteFetched(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

 private:
  void CopyToDevice(uint64_t number) ABSL_LOCKS_EXCLUDED(core_->mu);
  void InsertIntoHost(StoredObject* object, std::vector<SliceView> views)
      ABSL_LOCKS_EXCLUDED(core_->mu);

  StoreCore* const core_;
  std::unique_ptr<Executor> copier_;
  uint64_t promoting_bytes_ ABSL_GUARDED_BY(core_->mu) = 0;  // total size of the claimed objects
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_PROMOTER_H_
