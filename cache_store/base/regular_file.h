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

// What a file's mode says it is: "a pipe", "a symbolic link", "a regular file".
const char* FileKind(mode_t mode);

// A descriptor, opened with the flags of open(2); O_CLOEXEC and O_NONBLOCK are added. Links are
// followed unless O_NOFOLLOW is among the flags. kFailedPrecondition: not a regular file, or a
// link that is not followed; else the code of the system's error.
absl::StatusOr<int> OpenRegularFile(const std::string& path, int flags, mode_t mode = 0);

// Returns kFailedPrecondition if the path, after following links, is there and is not a regular
// file. For libraries that open the file themselves.
absl::Status CheckIsRegular(const std::string& path);

// The bytes of a regular file, after following links, or of anything else with `pipes_too`: a FIFO
// or a device might never answer. kNotFound names the file; `max_bytes` bounds it.
absl::StatusOr<std::string> ReadBoundedFile(const std::string& path, uint64_t max_bytes,
                                            bool pipes_too = false);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_REGULAR_FILE_H_
