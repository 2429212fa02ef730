// Tells whether a folder is a store's data folder, or can become one, without opening it.
#ifndef HEARTH_CACHE_STORE_DISK_DATA_FOLDER_H_
#define HEARTH_CACHE_STORE_DISK_DATA_FOLDER_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace hearth {

// Checks that the store's entries of the folder are regular files and folders, so that no pipe
// keeps a start waiting and no symbolic link leads a write or an erase out of the folder.
// kFailedPrecondition names the first that is not. The folder itself may be a link.
absl::Status CheckEntries(const std::string& dir);
// Checks everything in a folder in the same way. `follows_links`: links to files and folders pass.
// Folders that this process may not list are left out: RocksDB cannot find files in them either.
absl::Status CheckTree(const std::string& folder, bool follows_links);

// Returns OK if the folder has the file that a database is opened by. kDataLoss, which says what to
// do: it has other parts of a database only. kFailedPrecondition: it has none.
absl::Status CheckHasDatabase(const std::string& dir);
// CheckEntries, then CheckHasDatabase.
absl::Status CheckCanBeOpened(const std::string& dir);

// OK when another folder can be renamed to it: it is absent or empty, and no mount point. Else
// kFailedPrecondition.
absl::Status CheckIsFree(const std::string& dir);
// True when it is absent, or a folder with nothing in it.
bool IsEmptyFolder(const std::string& dir);

// Takes the folder, and the store's in it, from all but their owner. The group keeps its rights in
// a folder that passes its group on (setgid), as Kubernetes' fsGroup makes volumes. Only the owner
// can do so: says which folder other users can read; empty: none.
std::string MakePrivate(const std::string& dir);

// The process that has the folder open; none when nobody has, or only this process. REQUIRES: this
// process does not have it open, since the check would end its own lock.
std::optional<pid_t> FolderHolder(const std::string& dir);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DATA_FOLDER_H_
