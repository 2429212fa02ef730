// Handles a database that cannot be opened because it is damaged. Private to disk/.
//
// A missing or unreadable table loses only its own contents. If RocksDB's manifest is damaged,
// RocksDB's best-efforts recovery returns to the newest state whose files all exist. The recovery
// runs in a child process, because RocksDB may assert on damaged bytes. If two reads of the same
// bytes differ, the repair stops and leaves the disk unchanged (recovery_files.h). A database that
// cannot be repaired is renamed to `db.damaged`; it is deleted after a week, or when space is
// needed.
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

// Repairs the database at `path`, which must not be open, in a child process. OK: the database can
// be opened, but data may be lost. The child ends after a few minutes at the latest, and with its
// parent. kDataLoss: the repair failed. kAborted: a read failed, or two reads of the same bytes
// differed; the database is unchanged. kUnavailable: fork failed; nothing was changed. `files`: the
// file system of options.env, after Begin().
absl::Status RecoverInChild(const rocksdb::DBOptions& options, const std::string& path,
                            const std::vector<rocksdb::ColumnFamilyDescriptor>& families,
                            const RecoveryFileSystem& files);

// Removes from `*contents` the objects whose slices were in missing or truncated tables, and adds a
// description of each such table to the damage.
void FindLostTables(const Database& db, DiskContents* contents);

// Renames the database of data folder `dir`, which must not be open, to `db.damaged`, and adds a
// line about it. Removes an older `db.damaged`.
absl::Status SetAside(const std::string& dir, const std::string& why,
                      std::vector<std::string>* lines);
// Returns the bytes of the database and of `db.damaged`.
uint64_t DatabaseBytes(const std::string& dir);
// Removes `db.damaged` if it is older than `age`.
void RemoveSetAside(const std::string& dir, absl::Duration age);
inline constexpr absl::Duration kKeptSetAside = absl::Hours(7 * 24);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_RECOVERY_H_
