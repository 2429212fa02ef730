// Promoter: copies objects that were read from disk into RAM, one by one, in the background, and
// copies objects that are fetched often to the gpu tier.
//
// A session keeps the slices of an object until it has read all of them, then hands them to the
// background executor, which makes room and inserts them. So a fetch that ends early promotes whole
// objects only, and evicts only what these objects need. Room is made by demoting, so a promotion
// loses no data. If an object cannot be queued or copied to the device, this is counted and the
// object stays where it is. Thread safe. Ownership: borrows the core; jobs run in the core's
// executor, copies to the device in the promoter's own executor.
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
  // `copier`: executor for copies to the device, with room for hundreds of queued copies. Null: the
  // core's executor.
  Promoter(StoreCore* core, std::unique_ptr<Executor> copier)
      : core_(core), copier_(std::move(copier)) {}
  // Waits until all accepted copies to the device are done. Must be the last call.
  void StopCopying() { copier_.reset(); }

  // Returns false if RAM cannot hold the point together with the objects that must stay: a
  // promotion would only evict all other objects.
  bool MayPromote(const RestorePointEntry& point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Returns whether this reader should promote the object: the object is not in RAM, no other
  // reader is promoting it, and the memory held for promotions stays below its limit.
  bool Claim(StoredObject* object) ABSL_LOCKS_EXCLUDED(core_->mu);
  void Unclaim(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Queues the promotion, whose end ends the claim. REQUIRES: the caller has claimed and holds the
  // object; `views` are all of its slices.
  void Promote(StoredObject* object, std::vector<SliceView> views) ABSL_LOCKS_EXCLUDED(core_->mu);
  // Call at the end of a session that read the object from RAM or disk. REQUIRES: the caller holds
  // the object.
  void NoteFetched(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

 private:
  void CopyToDevice(uint64_t number) ABSL_LOCKS_EXCLUDED(core_->mu);
  void InsertIntoHost(StoredObject* object, std::vector<SliceView> views)
      ABSL_LOCKS_EXCLUDED(core_->mu);

  StoreCore* const core_;
  std::unique_ptr<Executor> copier_;
  uint64_t promoting_bytes_ ABSL_GUARDED_BY(core_->mu) = 0;  // total size of claimed objects
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_PROMOTER_H_
