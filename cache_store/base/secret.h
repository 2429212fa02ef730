// The secret that roots every key, so that keys cannot be guessed from tokens.
//
// Read from a file, or made once from the system's random source. The file holds 64 hex digits,
// mode 0600; one that others may read is refused. No state.
#ifndef HEARTH_CACHE_STORE_BASE_SECRET_H_
#define HEARTH_CACHE_STORE_BASE_SECRET_H_

#include <string>

#include "absl/status/statusor.h"

namespace hearth {

inline constexpr size_t kSecretBytes = 32;

// 32 fresh random bytes.
absl::StatusOr<std::string> MakeSecret();
// kFailedPrecondition names the file: absent, malformed, or readable by others.
absl::StatusOr<std::string> ReadSecret(const std::string& path);
// Writes it to `path` unless a file is there; whole, durable and mode 0600 before it returns.
absl::Status CopySecret(const std::string& secret, const std::string& path);
// Reads `path`, made first when absent. Durable before it returns.
absl::StatusOr<std::string> ReadOrMakeSecret(const std::string& path);

// A digest that the data folder keeps, to tell whether it is given the same secret again.
std::string SecretCheck(const std::string& secret);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_SECRET_H_
