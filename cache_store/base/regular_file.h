// Functions that open and read only regular files, because reading a pipe could block and a device
// may have no end.
//
// Thread safe. The caller closes descriptors. Invariants: (1) no call waits for another process,
// unless the caller allows pipes; (2) errors name the file.
#ifndef HEARTH_CACHE_STORE_BASE_REGULAR_FILE_H_
#define HEARTH_CACHE_STORE_BASE_REGULAR_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hearth {

// Returns the kind of file for a mode of stat(2), such as "a pipe" or "a symbolic link".
const char* FileKind(mode_t mode);

// Opens a regular file and returns its descriptor. Adds O_CLOEXEC and O_NONBLOCK to `flags`.
// Follows symbolic links unless `flags` has O_NOFOLLOW. kFailedPrecondition: the file is not
// regular, or is a link and O_NOFOLLOW is set. Other errors have the code of the system error.
absl::StatusOr<int> OpenRegularFile(const std::string& path, int flags, mode_t mode = 0);

// Returns kFailedPrecondition if the path exists (after following links) and is not a regular file.
// For files that a library opens itself.
absl::Status CheckIsRegular(const std::string& path);

// Returns the contents of a regular file; follows links. If `pipes_too`, also reads pipes and
// devices, which may block. kNotFound: the file cannot be read, is not a regular file, or is larger
// than `max_bytes`.
absl::StatusOr<std::string> ReadBoundedFile(const std::string& path, uint64_t max_bytes,
                                            bool pipes_too = false);

// Returns a text that differs after each change of the file, computed from inode, size and times.
// If the file is absent, returns a text for that state.
std::string FileStampOf(const std::string& path);

// Drops the file's pages from the page cache, so that the next read reads the disk; dirty pages
// stay. Does nothing if the system refuses; does not follow links. Do not call it for a file on
// which this process holds an fcntl(2) lock, because closing the file releases the lock.
void DropFromPageCache(const std::string& path);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_REGULAR_FILE_H_
