// The folder "lost" of a data folder, which keeps files for a repair: damaged ones, and those that
// RocksDB would have deleted while restore points were missing. Private to disk/.
//
// A file keeps its name, or gets a number before its ending where the name is taken: nothing is
// ever overwritten, and readers tell tables, logs and blob files by their endings. Pure functions
// of the file system. Errors name the folder; then nothing was moved.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_LOST_FOLDER_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_LOST_FOLDER_H_

#include <rocksdb/file_system.h>

#include <string>

namespace hearth {

// DIR/lost, for a database in DIR/db.
std::string LostFolderOf(const std::string& database);

// `path`: a file in the folder DIR/db. `*kept`: its new path; may be null.
rocksdb::IOStatus MoveToLost(rocksdb::FileSystem* files, const std::string& path,
                             std::string* kept = nullptr);
// Gives it a second name there, unless it has one already.
rocksdb::IOStatus LinkToLost(rocksdb::FileSystem* files, const std::string& path,
                             std::string* kept = nullptr);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_LOST_FOLDER_H_
