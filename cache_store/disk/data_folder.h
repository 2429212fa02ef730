// Checks whether a folder is, or can become, a store's data folder, without opening the database.
#ifndef HEARTH_CACHE_STORE_DISK_DATA_FOLDER_H_
#define HEARTH_CACHE_STORE_DISK_DATA_FOLDER_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace hearth {

// Checks that the store's files and folders in `dir` are regular files and folders: a pipe could
// block the start, and a symbolic link could lead writes out of the folder. kFailedPrecondition
// names the first wrong entry. `dir` itself may be a link.
absl::Status CheckEntries(const std::string& dir);
// Checks that `folder` contains only regular files and folders, recursively. `follows_links`: links
// to files and folders are allowed. Skips folders that this process may not list, because RocksDB
// cannot read them either.
absl::Status CheckTree(const std::string& folder, bool follows_links);

// Returns OK if the folder has the file CURRENT, without which RocksDB cannot open the database.
// kDataLoss (with advice): the folder has only other files of a database. kFailedPrecondition:
// there is no database.
absl::Status CheckHasDatabase(const std::string& dir);
// Calls CheckEntries, then CheckHasDatabase.
absl::Status CheckCanBeOpened(const std::string& dir);

// Returns OK if `dir` can be replaced by renaming another folder to `dir`: it is absent, or empty
// and not a mount point. Otherwise kFailedPrecondition.
absl::Status CheckIsFree(const std::string& dir);
// Returns whether `dir` is absent, or is an empty folder.
bool IsEmptyFolder(const std::string& dir);

// Removes other users' access to the data folder and its subfolders. If the folder has the setgid
// bit (such as a Kubernetes volume with fsGroup), the group keeps its access. If this process does
// not own a folder and other users can read it, returns a warning that names the folder; otherwise
// returns an empty text.
std::string MakePrivate(const std::string& dir);

// Returns the id of another process that has the folder open; nullopt if there is none. REQUIRES:
// this process does not have the folder open, because this check would release its lock.
std::optional<pid_t> FolderHolder(const std::string& dir);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DATA_FOLDER_H_
