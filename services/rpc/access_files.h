// Files and addresses that flags of access name; both ends of a connection use these.
//
// Thread safety: pure functions apart from reading.
#ifndef HEARTH_SERVICES_RPC_ACCESS_FILES_H_
#define HEARTH_SERVICES_RPC_ACCESS_FILES_H_

#include <string>

#include "absl/status/statusor.h"

namespace hearth {

// Nothing but this host sees what is sent there: a unix socket, or an address of the loopback.
bool StaysOnHost(const std::string& address);

// The file's bytes. kNotFound names the flag, also where there is nothing in the file.
absl::StatusOr<std::string> ReadFlagFile(const std::string& flag, const std::string& path);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_ACCESS_FILES_H_
