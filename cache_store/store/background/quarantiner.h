// Quarantiner: removes restore points: dropped points, and all points that use a wrong object. An
// object is wrong if a reader found its bytes damaged, or if a caller proved its contents wrong
// although the digests match.
//
// Thread safe. Ownership: borrows the core.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_QUARANTINER_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_QUARANTINER_H_

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class Quarantiner {
 public:
  explicit Quarantiner(StoreCore* core) : core_(core) {}

  // Implements StoreAdmin::Quarantine.
  absl::StatusOr<QuarantineResult> Quarantine(const PrefixQuery& query,
                                              absl::Span<const ObjectId> objects)
      ABSL_LOCKS_EXCLUDED(core_->mu);
  // Call if no tier has intact bytes of this object. REQUIRES: the caller holds the object.
  void QuarantineObject(StoredObject* object, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(core_->mu);
  // Call if the object's copy in RAM is damaged. If the object is also on disk, only the copy in
  // RAM is removed.
  void QuarantineHostCopy(StoredObject* object) ABSL_LOCKS_EXCLUDED(core_->mu);
  // Call after a read of the object from disk failed or gave wrong bytes. The cause may be
  // temporary, so the object is hidden for a second, and for longer after each further failure; the
  // next read bypasses the page cache. The object is quarantined if its reads keep giving the same
  // wrong bytes, unless many other objects fail, too. An object with a copy in RAM is kept.
  // REQUIRES: the caller holds the object.
  void NoteReadFailure(StoredObject* object, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(core_->mu);

  // Call after all of the object was read from disk intact: resets its failure count.
  void NoteRead(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  // Removes the point and the objects that no other point uses.
  void RemovePoint(RestorePointEntry* point, Removal why, DropResult* result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Removes the tenant's points for which `leaves` returns true, including points that lookups
  // create from parts of others in the meantime: the lock is released between points.
  DropResult RemovePoints(const std::string& tenant, Removal why,
                          absl::FunctionRef<bool(const RestorePointEntry&)> leaves)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

 private:
  // Records that a read of the object failed. Returns whether so many objects failed recently that
  // the disk must be at fault.
  bool ManyFail(uint64_t object, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  bool QuarantineLocked(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  StoreCore* const core_;
  // Objects whose reads failed within the last minute and have not succeeded since, with the time
  // of the failure; at most kMaxFailing + 1 objects.
  absl::flat_hash_map<uint64_t, absl::Time> failing_ ABSL_GUARDED_BY(core_->mu);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_QUARANTINER_H_
