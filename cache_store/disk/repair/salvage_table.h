// Reading a table of a damaged database block by block, skipping what rotted. No RocksDB: it opens
// no table whose end is gone, and asserts against blocks that make no sense.
//
// The format is RocksDB's block-based one, as this program writes it: not compressed, one index.
// Blocks of entries lie one after the other from the file's beginning, each with a checksum. Where
// the index can be read it says where they are; else each is followed by the next. Pure functions
// of the file.
#ifndef HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_TABLE_H_
#define HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_TABLE_H_

#include <string>

#include "cache_store/disk/repair/salvage_file.h"

namespace hearth {

// The footer of a table.
struct TableEnd {
  bool is_readable = false;  // footer, index and properties; else nothing below is known
  std::string family;
  bool is_ingested = false;  // written beside the log, so that a database can take it over as it is
};

TableEnd ReadTableEnd(const RawFile& file);

// Every entry that can still be read, in the file's order.
SalvageDamage VisitTable(const RawFile& file, const VisitSalvaged& visit);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_TABLE_H_
