// HostResolver: the addresses of a host's name, asked for without waiting.
//
// getaddrinfo waits, as long as name servers make it: each node has a thread while its name is
// asked for, and at most kMaxNames are. Thread safety: its loop's thread. Ownership: the loop
// outlives it; what is not answered when it is destroyed is never answered.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_HOST_RESOLVER_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_HOST_RESOLVER_H_

#include <sys/socket.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "cache_store/shared/redis/event_loop.h"
#include "cache_store/shared/redis/redis_options.h"

namespace hearth {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t bytes = 0;
};

class HostResolver {
 public:
  using Addresses = std::vector<SocketAddress>;  // one at least
  using Done = std::function<void(absl::StatusOr<Addresses>)>;
  // A node can name any hosts as its neighbours.
  static constexpr size_t kMaxNames = 16;

  explicit HostResolver(EventLoop* loop);
  ~HostResolver();
  HostResolver(const HostResolver&) = delete;
  HostResolver& operator=(const HostResolver&) = delete;

  // Calls `done` once, in this call where the host is an address. kUnavailable.
  void Resolve(const NodeAddress& node, Done done);

 private:
  struct Asker;  // what its threads know of it

  std::map<NodeAddress, std::vector<Done>> waiting_;
  const std::shared_ptr<Asker> asker_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_HOST_RESOLVER_H_
