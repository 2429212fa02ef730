// HostResolver: resolves host names without blocking the event loop.
//
// getaddrinfo blocks while name servers are slow, so each lookup has its own thread, at most
// kMaxNames at a time. Thread safety: the loop's thread. Ownership: the loop outlives the resolver.
// When the resolver is destroyed, running lookups are abandoned.
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
  using Addresses = std::vector<SocketAddress>;  // addresses of a host; at least one
  using Done = std::function<void(absl::StatusOr<Addresses>)>;
  // Limit of concurrent lookups, because a hostile node can name any number of hosts.
  static constexpr size_t kMaxNames = 16;

  explicit HostResolver(EventLoop* loop);
  ~HostResolver();
  HostResolver(const HostResolver&) = delete;
  HostResolver& operator=(const HostResolver&) = delete;

  // Resolves the node's host and calls `done` once (during this call if the host is a numeric
  // address). Errors are kUnavailable.
  void Resolve(const NodeAddress& node, Done done);

 private:
  struct SharedState;  // state that the lookup threads share with the resolver

  std::map<NodeAddress, std::vector<Done>> waiting_;
  const std::shared_ptr<SharedState> state_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_HOST_RESOLVER_H_
