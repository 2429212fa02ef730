// HostResolver: the addresses of a host's name, asked for without waiting.
//
// Names are c-ares's work: the hosts file, then DNS. Thread safety: its loop's thread. Ownership:
// the loop outlives it; what is not answered when it is destroyed is never answered.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_HOST_RESOLVER_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_HOST_RESOLVER_H_

#include <ares.h>
#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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

  explicit HostResolver(EventLoop* loop);
  ~HostResolver();
  HostResolver(const HostResolver&) = delete;
  HostResolver& operator=(const HostResolver&) = delete;

  // Calls `done` once, in this call where the host is an address. kUnavailable.
  void Resolve(const NodeAddress& node, Done done);

 private:
  // Of one of the library's sockets.
  class Socket : public EventLoop::Watcher {
   public:
    Socket(HostResolver* resolver, int fd) : resolver_(resolver), fd_(fd) {}
    void OnReady(uint32_t events) override { resolver_->Process(fd_, events); }

   private:
    HostResolver* const resolver_;
    const int fd_;
  };
  struct Question;

  static void OnSocket(void* self, int fd, int reads, int writes);
  static void OnAnswer(void* question, int status, int timeouts, ares_addrinfo* found);
  void Process(int fd, uint32_t events);
  void SetTimer();

  EventLoop* const loop_;
  ares_channel channel_ = nullptr;
  std::map<int, std::unique_ptr<Socket>> sockets_;
  std::optional<EventLoop::Timer> timer_;
  bool ends_ = false;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_HOST_RESOLVER_H_
