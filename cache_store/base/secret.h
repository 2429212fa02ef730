// The secret from which all keys are derived, so that nobody can guess keys from tokens.
//
// Read from a file of 64 hex digits, mode 0600, or created once from the system's random source. A
// file that other users can read is refused.
#ifndef HEARTH_CACHE_STORE_BASE_SECRET_H_
#define HEARTH_CACHE_STORE_BASE_SECRET_H_

#include <string>

#include "absl/status/statusor.h"

namespace hearth {

inline constexpr size_t kSecretBytes = 32;

// Returns a new secret: 32 random bytes.
absl::StatusOr<std::string> MakeSecret();
// Reads a secret. kFailedPrecondition names the file: it is absent, malformed, or readable by other
// users.
absl::StatusOr<std::string> ReadSecret(const std::string& path);
// Writes the secret to `path` unless the file exists: atomically, with mode 0600, and synced to
// disk.
absl::Status CopySecret(const std::string& secret, const std::string& path);
// Reads the secret from `path`; creates the file, synced to disk, if it is absent.
absl::StatusOr<std::string> ReadOrMakeSecret(const std::string& path);

// Returns a digest of the secret. The data folder stores it, so that a start with another secret is
// noticed.
std::string SecretCheck(const std::string& secret);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_SECRET_H_
