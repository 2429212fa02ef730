// What a start does with a database that cannot be opened for damage. Private to disk/.
//
// A table that is gone, or cannot be opened, costs what it holds. With a damaged manifest RocksDB's
// best-efforts recovery goes back to the newest state whose files are all there, in a child
// process, since it may assert on what it reads. While RocksDB mends, a read that differs from its
// repetition ends the mending and leaves the disk as it is (mending_files.h). What cannot be mended
// is set aside whole, as `db.damaged` beside the database: one is kept, for a week, and goes first
// where room is lacking.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_RECOVERY_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_RECOVERY_H_

#include <rocksdb/db.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/disk/disk_tier_db.h"

namespace hearth {

// Ok: the database at `path`, which is not open, can be opened again; some of it may be lost. The
// child has a few minutes, and ends with its parent. kDataLoss: it could not mend it. kAborted: a
// read failed, or two reads of the same bytes differed: the database is as it was. kUnavailable:
// there could be no child, and nothing was tried. `files`: the file system of options.env, after
// Begin.
absl::Status RecoverInChild(const rocksdb::DBOptions& options, const std::string& path,
                            const std::vector<rocksdb::ColumnFamilyDescriptor>& families,
                            const MendingFileSystem& files);

// Takes objects out of `*contents` whose slices were in tables that are gone or cut, and adds a
// line of damage for each table.
void FindLostTables(const Database& db, DiskContents* contents);

// Renames the database of `dir`, which is not open, and says so in a line. Removes an older one.
absl::Status SetAside(const std::string& dir, const std::string& why,
                      std::vector<std::string>* lines);
// Of all files of the database and of one that was set aside.
uint64_t DatabaseBytes(const std::string& dir);
// One older than `age`.
void RemoveSetAside(const std::string& dir, absl::Duration age);
inline constexpr absl::Duration kKeptSetAside = absl::Hours(7 * 24);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_RECOVERY_H_
