// Quarantiner: removes restore points that were dropped, and all restore points that use a wrong
// object. An object is wrong if its bytes do not match its digests, or if a caller proved that its
// contents are wrong.
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
  // Removes the object and all restore points that use it. Call if no tier has intact bytes of the
  // object. REQUIRES: the caller holds the object.
  void QuarantineObject(StoredObject* object, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(core_->mu);
  // Removes a damaged copy in RAM; removes the object only if it is not on disk.
  void QuarantineHostCopy(StoredObject* object) ABSL_LOCKS_EXCLUDED(core_->mu);
  // Call after a read of the object from disk failed or gave wrong bytes. The cause may be
  // temporary, so the object is hidden for a second, and longer after each further failure. The
  // next read bypasses the page cache. If all reads give the same wrong bytes, the object is
  // quarantined, unless reads of many other objects fail, too. An object with a copy in RAM is
  // kept. REQUIRES: the caller holds the object.
  void NoteReadFailure(StoredObject* object, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(core_->mu);

  // Resets the object's count of failures. Call after the whole object was read from disk intact.
  void NoteRead(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  // Removes the restore point, and the objects that no other restore point uses.
  void RemovePoint(RestorePointEntry* point, Removal why, DropResult* result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Removes the tenant's restore points for which `leaves` returns true, including points that
  // lookups create from objects of others during the call, because the lock is released between
  // points.
  DropResult RemovePoints(const std::string& tenant, Removal why,
                          absl::FunctionRef<bool(const RestorePointEntry&)> leaves)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

 private:
  // Records that a read of the object failed. Returns whether so many objects failed recently that
  // the disk must be at fault.
  bool ManyFail(uint64_t object, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  bool QuarantineLocked(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  StoreCore* const core_;
  // Objects whose reads failed within the last minute and did not succeed since: object number ->
  // time of the failure. At most kMaxFailing + 1 objects.
  absl::flat_hash_map<uint64_t, absl::Time> failing_ ABSL_GUARDED_BY(core_->mu);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_QUARANTINER_H_
