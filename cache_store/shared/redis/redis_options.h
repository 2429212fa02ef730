// RedisOptions: which Redis to use and how long to wait for it; NodeAddress: where a node listens.
//
// Plain values. Nodes report the addresses of other nodes, so each address is checked before use.
// Secrets and certificates are files, read again for each new connection after they changed. Open
// connections are not affected, and unusable files leave the previous values in place.
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
  std::string host;  // a name, or an IP address without brackets
  uint16_t port = 0;

  std::string Text() const;
  bool operator<(const NodeAddress& other) const {
    return std::tie(host, port) < std::tie(other.host, other.port);
  }
  bool operator==(const NodeAddress& other) const {
    return host == other.host && port == other.port;
  }
};

// Returns whether `host` has 1 to 253 letters, digits, dots, hyphens, colons and underscores.
bool IsHostName(absl::string_view host);

// Parses "HOST:PORT", "[ADDRESS]:PORT", and IPv6 "ADDRESS:PORT" as Redis writes it. An empty host
// becomes `default_host`. Errors are kInvalidArgument.
absl::StatusOr<NodeAddress> ParseNodeAddress(absl::string_view text,
                                             absl::string_view default_host = "");

struct RedisOptions {
  // Nodes of one cluster, or one Redis without a cluster. At least one; one that answers is enough.
  std::vector<NodeAddress> addresses;
  bool use_tls = false;
  std::string ca_file;                     // "": the system's certificate authorities
  std::string certificate_file, key_file;  // client certificate; both or neither
  std::string user;                        // "": Redis's default user
  std::string password_file;               // "": no password
  FileReport on_unusable_file = nullptr;   // called on the client's thread

  // Time limit from resolving the host to an answering connection.
  absl::Duration connect_wait = absl::Seconds(1);
  // If a node owes a reply and nothing arrives for this time, its connection is closed. Half a
  // second is longer than the stalls of a healthy Redis (a fork, a sync of its log).
  absl::Duration silence = absl::Milliseconds(500);
  // Pause between two attempts to reach a node; up to eight times as long for a node that never
  // served. With connect_wait it bounds the time to find a node again.
  absl::Duration probe_pause = absl::Milliseconds(250);
};

// Parses "redis://HOST:PORT[,HOST:PORT...]"; rediss: with TLS. Other options keep their defaults.
absl::StatusOr<RedisOptions> ParseRedisUrl(absl::string_view url);

// Returns the text of a file without its line end; "" if `path` is empty. kFailedPrecondition names
// the file.
absl::StatusOr<std::string> ReadPassword(const std::string& path);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_OPTIONS_H_
