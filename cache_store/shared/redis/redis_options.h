// RedisOptions: which Redis to use, and how long to wait for it; NodeAddress: where a node listens.
//
// Values. Nodes tell the addresses of others, so each is checked before it is used. Secrets and
// certificates are files: they are read again for each connection once they have changed.
// Connections that stand are left alone, and files that cannot be used change nothing that worked.
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

struct RedisOptions {
  // Nodes of one cluster, or one Redis without a cluster. One that answers is enough. Not none.
  std::vector<NodeAddress> addresses;
  bool use_tls = false;
  std::string ca_file;                     // "": the system's authorities
  std::string certificate_file, key_file;  // of this client; both or neither
  std::string user;                        // "": Redis's default user
  std::string password_file;               // "": no password
  FileReport on_unusable_file = nullptr;   // called on the client's thread

  // From a host's name to a connection that answers.
  absl::Duration connect_wait = absl::Seconds(1);
  // A connection to a node that owes an answer, and of which nothing came for so long, is closed:
  // half a second is longer than the stalls of a healthy Redis (a fork, a sync of its log).
  absl::Duration silence = absl::Milliseconds(500);
  // Between two attempts to reach a node; up to eight times as long for one that never served. With
  // connect_wait it is the time to find it again.
  absl::Duration probe_pause = absl::Milliseconds(250);
};

// Reads "redis://HOST:PORT[,HOST:PORT...]"; rediss: with TLS. Everything else has its default.
absl::StatusOr<RedisOptions> ParseRedisUrl(absl::string_view url);

// The text of a file without the end of its line; "" where `path` is. kFailedPrecondition names it.
absl::StatusOr<std::string> ReadPassword(const std::string& path);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_OPTIONS_H_
