// Quarantiner: removes wrong objects and all restore points that name them: objects that a reader
// found broken, and objects that a caller proved wrong though their digests are right.
//
// Thread safe. Ownership: borrows the core.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_QUARANTINER_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_QUARANTINER_H_

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class Quarantiner {
 public:
  explicit Quarantiner(StoreCore* core) : core_(core) {}

  // TieredStore::Quarantine.
  absl::StatusOr<QuarantineResult> Quarantine(const PrefixQuery& query,
                                              absl::Span<const ObjectId> objects)
      ABSL_LOCKS_EXCLUDED(core_->mu);
  // No tier has right bytes of this object. REQUIRES: the caller holds it.
  void QuarantineObject(const StoredObject* object, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(core_->mu);
  // Its copy in RAM is broken: only that copy goes when there is another on disk.
  void QuarantineHostCopy(const StoredObject* object) ABSL_LOCKS_EXCLUDED(core_->mu);
  // A read of it from disk failed, or gave wrong bytes, which may pass. It is hidden for a second,
  // and for longer each time; who reads it then reads past the page cache. It counts as lost when
  // that does not help. REQUIRES: the caller holds it.
  void Suspect(const StoredObject* object, const absl::Status& why) ABSL_LOCKS_EXCLUDED(core_->mu);

  // Removes a restore point. Adds the objects that only it named, to be released.
  void RemoveHeld(const RestorePointEntry* point, Removal why,
                  std::vector<const StoredObject*>* freed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Others have the lock in between.
  void Release(const std::vector<const StoredObject*>& held)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

 private:
  bool QuarantineLocked(const StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  std::vector<const StoredObject*> HoldObjects(const PrefixQuery& query, const PromptChain& chain,
                                               const KvLayout& layout,
                                               absl::Span<const ObjectId> objects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Removes all restore points that name one of these; others have the lock in between. Returns
  // objects that nothing names any more, to be released. REQUIRES: all held, and of one prompt.
  std::vector<const StoredObject*> RemoveNaming(const std::vector<const StoredObject*>& objects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void TakeOut(const std::vector<const StoredObject*>& objects, QuarantineResult* result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  StoreCore* const core_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_QUARANTINER_H_
