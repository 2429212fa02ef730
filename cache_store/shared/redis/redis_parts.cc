#include "cache_store/shared/redis/redis_parts.h"

#include <fstream>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace hearth {

absl::StatusOr<std::string> ReadPassword(const RedisOptions& options) {
  if (options.password_file.empty()) return "";
  std::ifstream file(options.password_file, std::ios::binary);
  std::string password{std::istreambuf_iterator<char>(file), {}};
  while (!password.empty() && (password.back() == '\n' || password.back() == '\r')) {
    password.pop_back();
  }
  if (file.bad() || password.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("redis: no password in ", options.password_file));
  }
  return password;
}

}  // namespace hearth
