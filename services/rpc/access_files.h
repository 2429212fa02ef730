// Reads and checks the files and addresses in flags of access, for both ends of a connection.
//
// Thread safety: pure functions apart from reading.
#ifndef HEARTH_SERVICES_RPC_ACCESS_FILES_H_
#define HEARTH_SERVICES_RPC_ACCESS_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace hearth {

// Whether only this host sees the bytes sent there: a unix socket, or a loopback address.
bool StaysOnHost(const std::string& address);

// The bytes of a regular file, after following links, or of anything else with `pipes_too`: a FIFO
// or a device might never answer. kNotFound names the file; `max_bytes` bounds it.
absl::StatusOr<std::string> ReadBoundedFile(const std::string& path, uint64_t max_bytes,
                                            bool pipes_too = false);

// The same of a flag's small file. The error names the flag, also for an empty file.
absl::StatusOr<std::string> ReadFlagFile(const std::string& flag, const std::string& path,
                                         bool pipes_too = false);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_ACCESS_FILES_H_
