// Reading a log of a damaged database: the batches that are whole, before and behind what is not.
//
// RocksDB gives up at the first record that does not match its checksum, for what follows may build
// on it. Here everything that follows proves itself: records by their digests, restore points by
// the objects that they name. Pure function of the file.
#ifndef HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_LOG_H_
#define HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_LOG_H_

#include "cache_store/disk/repair/salvage_file.h"

namespace hearth {

// Every entry of every whole batch, in the order in which they were written. That the last batch
// was not finished is no damage: a process that dies leaves that.
SalvageDamage VisitLog(const RawFile& file, const VisitSalvaged& visit);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_LOG_H_
