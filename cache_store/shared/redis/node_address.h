// NodeAddress: where a Redis node listens.
//
// Thread safety: a value. Nodes tell the addresses of others, so each is checked before it is used.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_NODE_ADDRESS_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_NODE_ADDRESS_H_

#include <cstdint>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace hearth {

struct NodeAddress {
  std::string host;  // a name, or an address without brackets
  uint16_t port = 0;

  std::string Text() const;
  bool operator<(const NodeAddress& other) const {
    return std::tie(host, port) < std::tie(other.host, other.port);
  }
  bool operator==(const NodeAddress& other) const {
    return host == other.host && port == other.port;
  }
};

// Letters, digits, dots, hyphens, colons, underscores; 253 characters at most.
bool IsHostName(absl::string_view host);

// "HOST:PORT", "[ADDRESS]:PORT", and "ADDRESS:PORT" of IPv6 as Redis writes it. An empty host is
// `default_host`. kInvalidArgument.
absl::StatusOr<NodeAddress> ParseNodeAddress(absl::string_view text,
                                             absl::string_view default_host = "");

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_NODE_ADDRESS_H_
