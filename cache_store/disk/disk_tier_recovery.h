// Handles a database that cannot be opened because of damage. Private to disk/.
//
// A missing or unreadable table loses only its own content. If RocksDB's manifest is damaged,
// RocksDB's best-efforts recovery returns to the newest state whose files all exist. It runs in a
// child process because RocksDB may assert on damaged bytes. If a read during the repair differs
// from its repetition, the repair stops and leaves the disk unchanged (recovery_files.h). A
// database that cannot be repaired is renamed to `db.damaged`: one is kept for a week, or until
// space is needed.
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

// Repairs the database at `path`, which must not be open. OK: it can be opened; data may be lost.
// The child has a few minutes, and ends with its parent. kDataLoss: repair failed. kAborted: a read
// failed, or two reads of the same bytes differed; the database is unchanged. kUnavailable: fork
// failed; nothing was changed. `files`: the file system of options.env, after Begin().
absl::Status RecoverInChild(const rocksdb::DBOptions& options, const std::string& path,
                            const std::vector<rocksdb::ColumnFamilyDescriptor>& families,
                            const RecoveryFileSystem& files);

// Removes objects from `*contents` whose slices were in missing or truncated tables; adds a line of
// damage for each table.
void FindLostTables(const Database& db, DiskContents* contents);

// Renames the database of `dir`, which must not be open, and reports it in a line. Removes a
// database that was set aside before.
absl::Status SetAside(const std::string& dir, const std::string& why,
                      std::vector<std::string>* lines);
// Returns the bytes of the database and of a database that was set aside.
uint64_t DatabaseBytes(const std::string& dir);
// Removes a database that was set aside, if it is older than `age`.
void RemoveSetAside(const std::string& dir, absl::Duration age);
inline constexpr absl::Duration kKeptSetAside = absl::Hours(7 * 24);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_RECOVERY_H_
