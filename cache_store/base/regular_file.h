// Opens and reads regular files: a pipe keeps its reader waiting, and a device has no end.
//
// Thread safety: plain functions. Ownership: the caller closes a descriptor. Invariants: (1) no
// call waits for another process, except a read of a pipe that is asked for; (2) errors name the
// file.
#ifndef HEARTH_CACHE_STORE_BASE_REGULAR_FILE_H_
#define HEARTH_CACHE_STORE_BASE_REGULAR_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hearth {

// Returns the kind of a file by its mode: "a pipe", "a symbolic link", "a regular file".
const char* FileKind(mode_t mode);

// Opens a file with the flags of open(2), to which O_CLOEXEC and O_NONBLOCK are added, and returns
// its descriptor. Links are followed unless O_NOFOLLOW is among the flags. kFailedPrecondition: the
// file is not regular, or is a link that is not followed; otherwise the code of the system's error.
absl::StatusOr<int> OpenRegularFile(const std::string& path, int flags, mode_t mode = 0);

// Returns kFailedPrecondition if the path, after following links, exists and is not a regular file.
// Call before a library opens the file itself.
absl::Status CheckIsRegular(const std::string& path);

// Returns the bytes of a regular file; links are followed. With `pipes_too` reads a pipe or a
// device too, which might never answer. kNotFound: the file cannot be read, is of another kind or
// has more than `max_bytes`.
absl::StatusOr<std::string> ReadBoundedFile(const std::string& path, uint64_t max_bytes,
                                            bool pipes_too = false);

// Returns another text after each change of a file, by what the file system says of it. A file that
// is not there has one, too.
std::string FileStampOf(const std::string& path);

// Makes the next read of a regular file the device's, but for pages that are not written yet. Does
// nothing where that is not possible; links are not followed. Do not call for a file of which this
// process holds a lock of fcntl(2): it would end the lock.
void DropFromPageCache(const std::string& path);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_REGULAR_FILE_H_
