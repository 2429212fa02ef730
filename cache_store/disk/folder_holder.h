// Tells which process has a data folder open.
#ifndef HEARTH_CACHE_STORE_DISK_FOLDER_HOLDER_H_
#define HEARTH_CACHE_STORE_DISK_FOLDER_HOLDER_H_

#include <sys/types.h>

#include <optional>
#include <string>

namespace hearth {

// None: nobody, or this process. REQUIRES: this process does not have it open itself; the look
// would end its own lock.
std::optional<pid_t> FolderHolder(const std::string& dir);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FOLDER_HOLDER_H_
