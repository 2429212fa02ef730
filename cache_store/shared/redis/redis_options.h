// RedisOptions: which Redis servers to use, and how long to wait for them. NodeAddress: host and
// port of a server.
//
// Plain values. Servers report the addresses of other servers, so each address is checked before
// use. Secrets and certificates are in files. A changed file is read again for the next connection;
// open connections stay. If a file cannot be used, its previous contents stay in use.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_OPTIONS_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_OPTIONS_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cache_store/base/reread_file.h"

namespace hearth {

struct NodeAddress {
  std::string host;  // host name, or IP address without brackets
  uint16_t port = 0;

  std::string Text() const;
  bool operator<(const NodeAddress& other) const {
    return std::tie(host, port) < std::tie(other.host, other.port);
  }
  bool operator==(const NodeAddress& other) const {
    return host == other.host && port == other.port;
  }
};

// Returns whether `host` consists of 1 to 253 letters, digits, dots, hyphens, colons and
// underscores.
bool IsHostName(absl::string_view host);

// Parses "HOST:PORT", "[ADDRESS]:PORT", or an IPv6 "ADDRESS:PORT" as Redis writes it. An empty host
// means `default_host`. Errors are kInvalidArgument.
absl::StatusOr<NodeAddress> ParseNodeAddress(absl::string_view text,
                                             absl::string_view default_host = "");

struct RedisOptions {
  // Addresses of nodes of one cluster, or of one Redis server. At least one; one node that answers
  // suffices.
  std::vector<NodeAddress> addresses;
  bool use_tls = false;
  std::string ca_file;                     // "": the system's certificate authorities
  std::string certificate_file, key_file;  // client certificate and key; both or neither
  std::string user;                        // "": Redis's default user
  std::string password_file;               // "": no password
  FileReport on_unusable_file = nullptr;   // called on the client's thread if a file cannot be used

  // Time limit of opening a connection, from resolving the host to the first answers, and of an
  // answer to CLUSTER SLOTS.
  absl::Duration connect_wait = absl::Seconds(1);
  // If a node has not sent a byte for this time although a reply is due, its connection is closed.
  // Half a second is longer than the stalls of a healthy Redis (a fork, or a sync of its log).
  absl::Duration silence = absl::Milliseconds(500);
  // Pause between two attempts to connect to a node; up to eight times as long for a node that has
  // never served. Together with connect_wait, it bounds the time until a returned node is used
  // again.
  absl::Duration probe_pause = absl::Milliseconds(250);
};

// Parses "redis://HOST:PORT[,HOST:PORT...]"; "rediss" means TLS. All other options get their
// defaults.
absl::StatusOr<RedisOptions> ParseRedisUrl(absl::string_view url);

// Returns the contents of a password file, without line ends at its end; "" if `path` is empty.
// kFailedPrecondition names the file.
absl::StatusOr<std::string> ReadPassword(const std::string& path);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_OPTIONS_H_
