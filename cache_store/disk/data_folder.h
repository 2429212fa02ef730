// Tells whether a folder is a store's data folder, without opening it.
#ifndef HEARTH_CACHE_STORE_DISK_DATA_FOLDER_H_
#define HEARTH_CACHE_STORE_DISK_DATA_FOLDER_H_

#include <string>

#include "absl/status/status.h"

namespace hearth {

// That it holds something of a database, be it damaged. Else kFailedPrecondition.
absl::Status CheckIsDataFolder(const std::string& dir);
// That it has what a database is opened by, too. Else kDataLoss, which says what to do.
absl::Status CheckCanBeOpened(const std::string& dir);

// Of a folder that another is to be renamed to, be it there or not. Else kFailedPrecondition.
absl::Status CheckIsNoMountPoint(const std::string& dir);
// kFailedPrecondition: something is in it.
absl::Status NotEmpty(const std::string& dir);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DATA_FOLDER_H_
