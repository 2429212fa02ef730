// RecoverIndex: fills a store's index from what its disk has, before it serves.
//
// Every manifest is read, checked and compared with the records of its objects. What does not fit
// is dropped, counted and said; objects that no manifest names are erased. A manifest that the disk
// does not give is left alone until the next start, with all objects that it might name. Errors:
// the disk's, when it gives nothing any more: nothing is erased, and another start may do better.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_RECOVERY_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_RECOVERY_H_

#include "cache_store/store/store_core.h"

namespace hearth {

// REQUIRES: a disk tier, whose Load was not called; nothing else uses the core yet.
absl::Status RecoverIndex(StoreCore* core) ABSL_LOCKS_EXCLUDED(core->mu);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_RECOVERY_H_
