#include "cache_store/shared/redis/redis_options.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cache_store/base/regular_file.h"

namespace hearth {
namespace {

constexpr size_t kAddressesMax = 64;

absl::Status Refuse(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("redis: url ", what));
}

constexpr size_t kHostBytesMax = 253;                       // longest host name, RFC 1035
constexpr uint64_t kPasswordBytesMax = uint64_t{64} << 10;  // Redis has no limit

}  // namespace

std::string NodeAddress::Text() const {
  const bool is_v6 = absl::StrContains(host, ':');
  return is_v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool IsHostName(absl::string_view host) {
  if (host.empty() || host.size() > kHostBytesMax) return false;
  return std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == ':' || c == '_';
  });
}

absl::StatusOr<NodeAddress> ParseNodeAddress(absl::string_view text,
                                             absl::string_view default_host) {
  const size_t colon = text.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) ||
      port < 1 || port > UINT16_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("an address must be HOST:PORT; got ", absl::CHexEscape(text.substr(0, 300))));
  }
  absl::string_view host = text.substr(0, colon);
  if (host.empty()) {
    host = default_host;
  } else if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  if (!IsHostName(host)) {
    return absl::InvalidArgumentError(absl::StrCat("a host name has invalid characters: ",
                                                   absl::CHexEscape(text.substr(0, 300))));
  }
  return NodeAddress{std::string(host), static_cast<uint16_t>(port)};
}

absl::StatusOr<std::string> ReadPassword(const std::string& path) {
  if (path.empty()) return "";
  const absl::StatusOr<std::string> read = ReadBoundedFile(path, kPasswordBytesMax);
  std::string password = read.value_or("");
  while (!password.empty() && (password.back() == '\n' || password.back() == '\r')) {
    password.pop_back();
  }
  if (password.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("redis: cannot read a password from ", path,
                     read.ok() ? "" : absl::StrCat(": ", read.status().message())));
  }
  return password;
}

absl::StatusOr<RedisOptions> ParseRedisUrl(absl::string_view url) {
  RedisOptions options;
  if (absl::ConsumePrefix(&url, "rediss://")) {
    options.use_tls = true;
  } else if (!absl::ConsumePrefix(&url, "redis://")) {
    return Refuse("must begin with redis:// or rediss://");
  }
  // Do not print the URL, which may contain a password.
  if (absl::StrContains(url, '@')) {
    return Refuse("must not have a user or password; use --shared-user and --shared-password-file");
  }
  absl::ConsumeSuffix(&url, "/");
  for (const absl::string_view text : absl::StrSplit(url, ',')) {
    absl::StatusOr<NodeAddress> address = ParseNodeAddress(text);
    if (!address.ok()) return std::move(address).status();
    options.addresses.push_back(*std::move(address));
  }
  if (options.addresses.size() > kAddressesMax) {
    return Refuse(absl::StrCat("must name at most ", kAddressesMax, " addresses"));
  }
  return options;
}

}  // namespace hearth
