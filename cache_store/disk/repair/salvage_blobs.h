// Reading a blob file of a damaged database: each value lies beside its key, so no table is needed
// to find it. Pure function of the file.
#ifndef HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_BLOBS_H_
#define HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_BLOBS_H_

#include "cache_store/disk/repair/salvage_file.h"

namespace hearth {

// Every value whose place is known, none of them sure: a slice proves itself by its digest. Behind
// a damaged head the next one is searched for. Values that rotted are no damage here.
SalvageDamage VisitBlobs(const RawFile& file, const VisitSalvaged& visit);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_BLOBS_H_
