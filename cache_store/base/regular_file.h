// Opens and reads regular files only: a pipe could block its reader, and a device may have no end.
//
// Thread safety: plain functions. Ownership: the caller closes a descriptor. Invariants: (1) no
// call waits for another process, unless the caller allows pipes; (2) errors name the file.
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

// Returns a text that changes with each change of the file, computed from the file's metadata. An
// absent file has a text as well.
std::string FileStampOf(const std::string& path);

// Makes the next read of a regular file read the device, except for pages that are not written yet.
// Does nothing if that is impossible; does not follow links. Do not call for a file on which this
// process holds an fcntl(2) lock: closing the file would release the lock.
void DropFromPageCache(const std::string& path);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_REGULAR_FILE_H_
