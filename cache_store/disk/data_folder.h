// Tells whether a folder is a store's data folder, or can become one, without opening it.
#ifndef HEARTH_CACHE_STORE_DISK_DATA_FOLDER_H_
#define HEARTH_CACHE_STORE_DISK_DATA_FOLDER_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace hearth {

// That it holds something of a database, be it damaged. Else kFailedPrecondition.
absl::Status CheckIsDataFolder(const std::string& dir);
// That it has what a database is opened by, too. Else kDataLoss, which says what to do.
absl::Status CheckCanBeOpened(const std::string& dir);

// That another can be renamed to it: it is not there, or empty, and no mount point. Else
// kFailedPrecondition.
absl::Status CheckIsFree(const std::string& dir);
// Not there, or a folder with nothing in it.
bool IsEmptyFolder(const std::string& dir);

// The process that has the folder open; none: nobody, or this process. REQUIRES: this process does
// not have it open itself; the look would end its own lock.
std::optional<pid_t> FolderHolder(const std::string& dir);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DATA_FOLDER_H_
