// The secret that roots every key, so that keys cannot be guessed from tokens.
//
// Read from a file, or made once from the system's random source. The file holds 64 hex digits,
// mode 0600. A file that other users can read is refused. No state.
#ifndef HEARTH_CACHE_STORE_BASE_SECRET_H_
#define HEARTH_CACHE_STORE_BASE_SECRET_H_

#include <string>

#include "absl/status/statusor.h"

namespace hearth {

inline constexpr size_t kSecretBytes = 32;

// Returns 32 fresh random bytes.
absl::StatusOr<std::string> MakeSecret();
// kFailedPrecondition (with the file's name): absent, malformed, or readable by others.
absl::StatusOr<std::string> ReadSecret(const std::string& path);
// Writes the secret to `path` unless the file exists: atomically, with mode 0600, durable on
// return.
absl::Status CopySecret(const std::string& secret, const std::string& path);
// Reads `path`; makes the file first if it is absent. Durable on return.
absl::StatusOr<std::string> ReadOrMakeSecret(const std::string& path);

// Returns a digest that the data folder stores, to detect a changed secret.
std::string SecretCheck(const std::string& secret);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_SECRET_H_
