// Promoter: puts objects that a reader got from the disk into RAM, one by one, in the background;
// and copies those that are often fetched to the gpu tier.
//
// A session keeps the slices of one object until it has read all of them, and hands them to the
// background executor, which makes room and inserts them. So a fetch that ends early has promoted
// whole objects, and evicted no more than these needed. Room is made by demoting only: a promotion
// loses nothing. An object that cannot be copied to the device in time is counted, and stays where
// it is. Thread safe. Ownership: borrows the core; its jobs run in the core's executor, copies to
// the device in one of its own.
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
  // `copier`: hundreds of copies may be queued at once. Null: the core's executor.
  Promoter(StoreCore* core, std::unique_ptr<Executor> copier)
      : core_(core), copier_(std::move(copier)) {}
  // Waits until all accepted copies to the device are done. The last call.
  void StopCopying() { copier_.reset(); }

  // False when RAM cannot hold the point beside the objects that must stay: trying would only push
  // out everything else.
  bool MayPromote(const RestorePointEntry& point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Whether this reader is to promote the object: it is not in RAM, no other reader promotes it,
  // and the memory held for promotions stays below its limit.
  bool Claim(StoredObject* object) ABSL_LOCKS_EXCLUDED(core_->mu);
  void Unclaim(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Ends the claim. REQUIRES: claimed, and held by the caller; `views` are all of its slices.
  void Promote(StoredObject* object, std::vector<SliceView> views) ABSL_LOCKS_EXCLUDED(core_->mu);
  // A session ends that read the object from RAM or disk. REQUIRES: held.
  void NoteFetched(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

 private:
  void CopyToDevice(uint64_t number) ABSL_LOCKS_EXCLUDED(core_->mu);
  void InsertIntoHost(StoredObject* object, std::vector<SliceView> views)
      ABSL_LOCKS_EXCLUDED(core_->mu);

  StoreCore* const core_;
  std::unique_ptr<Executor> copier_;
  uint64_t promoting_bytes_ ABSL_GUARDED_BY(core_->mu) = 0;  // of objects that are claimed
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_PROMOTER_H_
