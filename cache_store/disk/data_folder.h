// Checks whether a folder is a store's data folder, or can become one, without opening the
// database.
#ifndef HEARTH_CACHE_STORE_DISK_DATA_FOLDER_H_
#define HEARTH_CACHE_STORE_DISK_DATA_FOLDER_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace hearth {

// Checks that the store's entries of the folder are regular files and folders, so that a start does
// not wait for a pipe and no symbolic link leads a write or an erase out of the folder.
// kFailedPrecondition names the first wrong entry. The folder itself may be a link.
absl::Status CheckEntries(const std::string& dir);
// Checks all entries of a folder in the same way. `follows_links`: links to files and folders pass.
// Skips folders that this process may not list: RocksDB cannot find files in them either.
absl::Status CheckTree(const std::string& folder, bool follows_links);

// Returns OK if the folder has the file CURRENT, which opens the database. kDataLoss (with advice):
// the folder has only other parts of a database. kFailedPrecondition: no database.
absl::Status CheckHasDatabase(const std::string& dir);
// CheckEntries, then CheckHasDatabase.
absl::Status CheckCanBeOpened(const std::string& dir);

// Returns OK if another folder can be renamed to `dir`: `dir` is absent or empty and no mount
// point. Otherwise kFailedPrecondition.
absl::Status CheckIsFree(const std::string& dir);
// Returns whether `dir` is absent or an empty folder.
bool IsEmptyFolder(const std::string& dir);

// Removes other users' access to the folder and the store's folders in it. The group keeps its
// rights in a folder with the setgid bit, such as a Kubernetes volume with fsGroup. Only the owner
// can change access: returns a warning that names a folder that other users can read; empty: none.
std::string MakePrivate(const std::string& dir);

// Returns the process that has the folder open; nullopt if no other process has. REQUIRES: this
// process does not have the folder open, because the check would release its lock.
std::optional<pid_t> FolderHolder(const std::string& dir);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DATA_FOLDER_H_
