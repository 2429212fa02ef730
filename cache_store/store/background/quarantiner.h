// Quarantiner: removes restore points: those that somebody drops, and all that name a wrong object,
// one that a reader found broken, or that a caller proved wrong though its digests are right.
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

  // StoreAdmin::Quarantine.
  absl::StatusOr<QuarantineResult> Quarantine(const PrefixQuery& query,
                                              absl::Span<const ObjectId> objects)
      ABSL_LOCKS_EXCLUDED(core_->mu);
  // No tier has right bytes of this object. REQUIRES: the caller holds it.
  void QuarantineObject(StoredObject* object, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(core_->mu);
  // Its copy in RAM is broken: only that copy goes when there is another on disk.
  void QuarantineHostCopy(StoredObject* object) ABSL_LOCKS_EXCLUDED(core_->mu);
  // A read of it from disk failed, or gave wrong bytes, which may pass. It is hidden for a second,
  // and for longer each time; the next read goes past the page cache. It is quarantined when reads
  // give the same wrong bytes again and again, unless other objects fail, too. A copy in RAM
  // keeps it. REQUIRES: the caller holds it.
  void Suspect(StoredObject* object, const absl::Status& why) ABSL_LOCKS_EXCLUDED(core_->mu);

  // All of it was read from disk, and was right: earlier failures count no more.
  void NoteRead(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  // With the objects that only it named.
  void RemovePoint(RestorePointEntry* point, Removal why, DropResult* result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Those of the tenant's for which `leaves` is true, and what a lookup made of their parts
  // meanwhile: others have the lock between two.
  DropResult RemovePoints(const std::string& tenant, Removal why,
                          absl::FunctionRef<bool(const RestorePointEntry&)> leaves)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

 private:
  // Notes that a read of it failed. Whether so many objects failed of late that the disk is at
  // fault.
  bool ManyFail(uint64_t object, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  bool QuarantineLocked(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  StoreCore* const core_;
  // Objects whose reads failed within the last minute, and when, and that were not read right
  // since; a few are enough.
  absl::flat_hash_map<uint64_t, absl::Time> failing_ ABSL_GUARDED_BY(core_->mu);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_QUARANTINER_H_
