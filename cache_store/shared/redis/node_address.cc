#include "cache_store/shared/redis/node_address.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

constexpr size_t kHostBytesMax = 253;  // of a name, RFC 1035

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
        absl::StrCat("an address is HOST:PORT: ", absl::CHexEscape(text.substr(0, 300))));
  }
  absl::string_view host = text.substr(0, colon);
  if (host.empty()) {
    host = default_host;
  } else if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  if (!IsHostName(host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no host name: ", absl::CHexEscape(text.substr(0, 300))));
  }
  return NodeAddress{std::string(host), static_cast<uint16_t>(port)};
}

}  // namespace hearth
