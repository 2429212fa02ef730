#include "cache_store/shared/redis/redis_parts.h"

#include <fstream>
#include <iterator>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// The end of its line is no part of it. kFailedPrecondition names the file.
absl::StatusOr<std::string> ReadPassword(const std::string& path) {
  if (path.empty()) return "";
  std::ifstream file(path, std::ios::binary);
  std::string password{std::istreambuf_iterator<char>(file), {}};
  while (!password.empty() && (password.back() == '\n' || password.back() == '\r')) {
    password.pop_back();
  }
  if (file.bad() || password.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("redis: no password in ", path));
  }
  return password;
}

}  // namespace

RedisParts::RedisParts(const RedisOptions& given)
    : options(given),
      resolver(&loop),
      tls(options),
      password(options.password_file, &ReadPassword, options.on_unusable_file) {}

}  // namespace hearth
