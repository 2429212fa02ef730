// Quarantiner: removes restore points: those that somebody drops, and all that name a wrong object,
// one that a reader found broken, or that a caller proved wrong though its digests are right.
//
// Thread safe. Ownership: borrows the core.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_QUARANTINER_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_QUARANTINER_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
  void QuarantineObject(StoredObject* object, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(core_->mu);
  // Its copy in RAM is broken: only that copy goes when there is another on disk.
  void QuarantineHostCopy(StoredObject* object) ABSL_LOCKS_EXCLUDED(core_->mu);
  // A read of it from disk failed, or gave wrong bytes, which may pass. It is hidden for a second,
  // and for longer each time; who reads it then reads past the page cache. It counts as lost when
  // that does not help. REQUIRES: the caller holds it.
  void Suspect(StoredObject* object, const absl::Status& why) ABSL_LOCKS_EXCLUDED(core_->mu);

  // With the objects that only it named.
  void RemovePoint(RestorePointEntry* point, Removal why, DropResult* result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Those of the tenant's for which `leaves` is true, and what a lookup made of their parts
  // meanwhile: others have the lock between two.
  DropResult RemovePoints(const std::string& tenant, Removal why,
                          absl::FunctionRef<bool(const RestorePointEntry&)> leaves)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

 private:
  bool QuarantineLocked(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  StoreCore* const core_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_QUARANTINER_H_
