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

// The bytes of a flag's small file (ReadBoundedFile). The error names the flag, also for an empty
// file.
absl::StatusOr<std::string> ReadFlagFile(const std::string& flag, const std::string& path,
                                         bool pipes_too = false);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_ACCESS_FILES_H_
