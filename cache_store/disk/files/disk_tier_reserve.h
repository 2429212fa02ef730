// Room that is kept for a start on a full disk. Private to disk/.
//
// RocksDB writes a new manifest, options and log whenever it opens a database, though nobody
// publishes anything: without a little room a store that could still serve would not start. A file
// of the data folder keeps that room; a start that finds none gives the file up and tries again.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_RESERVE_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_RESERVE_H_

#include <rocksdb/file_system.h>

#include <cstdint>
#include <string>

namespace hearth {

// The manifest of 5,000 tables, twice, and as much again.
inline constexpr uint64_t kReserveBytes = uint64_t{2} << 20;

// Makes the file, or as much of it as there is room for.
void KeepReserve(rocksdb::FileSystem* files, const std::string& dir);
// False: there was none.
bool GiveUpReserve(rocksdb::FileSystem* files, const std::string& dir);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_RESERVE_H_
