// The folder "lost" of a data folder: files of the database that are damaged, or that RocksDB would
// have deleted while something was missed, are kept there for a repair. Private to disk/.
//
// A file keeps its name, or where that is taken gets a number before its ending: nothing is ever
// overwritten, and what reads the folder tells tables, logs and blob files by their endings. Pure
// functions of the file system. Errors name the folder; then nothing was moved.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_LOST_FOLDER_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_LOST_FOLDER_H_

#include <rocksdb/file_system.h>

#include <string>

namespace hearth {

// Of a database in DIR/db: DIR/lost.
std::string LostFolderOf(const std::string& database);

// `path`: of a file in the folder DIR/db. `*kept`: where it is then; may be null.
rocksdb::IOStatus MoveToLost(rocksdb::FileSystem* files, const std::string& path,
                             std::string* kept = nullptr);
// A second name for it. One that it has there already will do.
rocksdb::IOStatus LinkToLost(rocksdb::FileSystem* files, const std::string& path,
                             std::string* kept = nullptr);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_LOST_FOLDER_H_
