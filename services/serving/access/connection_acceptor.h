// ConnectionAcceptor: accepts a server's connections. Hands a bounded number of them to gRPC, each
// after its first byte, and closes the connections that the tracker finds over a limit. Connections
// of a unix socket are counted too, and must send a first byte. But the kernel counts no bytes for
// them, and gRPC has one name for all of them, so the tracker never closes one for its bytes.
//
// Thread safety: made, started and destroyed by one thread; works on a thread of its own.
// Ownership: the tracker must outlive the acceptor. After the handover gRPC owns the connection's
// descriptor; the acceptor keeps a duplicate, to see the end of the connection and to close it.
#ifndef HEARTH_SERVICES_SERVING_ACCESS_CONNECTION_ACCEPTOR_H_
#define HEARTH_SERVICES_SERVING_ACCESS_CONNECTION_ACCEPTOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "cache_store/base/executor.h"
#include "services/serving/access/connection_tracker.h"
#include "services/serving/access/listeners.h"

namespace hearth {

class ConnectionAcceptor {
 public:
  struct Options {
    std::string listen;  // "HOST:PORT" or "unix:PATH"
    bool speaks_tls = false;
    ConnectionTracker* tracker = nullptr;
    // A connection that sends no byte for this long is closed and never reaches gRPC.
    absl::Duration first_byte = absl::Seconds(10);
    // Clock for all timeouts, also the tracker's. Null: a SteadyClock.
    Clock* clock = nullptr;
    // Called on the acceptor's thread for each connection that is refused or closed.
    std::function<void(const std::string& peer, const std::string& why)> on_refused;
    // Takes over an accepted connection and its descriptor. Called on the acceptor's thread.
    std::function<void(int listener, int fd)> take;
    // Returns freed memory to the system, some seconds after connections over a limit were closed.
    // Called on a thread of its own; null: malloc_trim.
    std::function<void()> trim;
  };

  // Listens, but accepts no connection before Start. kUnavailable names the address.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Open(Options options);
  ~ConnectionAcceptor();
  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

  int port() const { return listeners_.port(); }  // 0: a unix socket
  void Start();

 private:
  struct Entry {
    std::shared_ptr<Connection> connection;
    int listener = -1;
    uint32_t number = 0;
    absl::Time since;
    bool awaits_first_byte = true;
    bool is_closing = false;  // an answer was sent, and the client must now close
  };

  explicit ConnectionAcceptor(Options options);
  void Run();
  void Accept(int listener);
  void PauseAccepting();
  void OnReady(int fd, uint32_t number, uint32_t events);
  void OnFirstByte(int fd, Entry* entry);
  void HandOver(int fd, Entry* entry);
  void RejectTlsMismatch(int fd, Entry* entry);
  void Drain(int fd);
  void Close(int fd);
  void CloseForErrno(int fd);  // with errno as the reason
  void Refuse(int fd, const std::string& why);
  bool Watch(int fd, uint32_t events, bool is_new, uint32_t number = 0);
  void CheckConnections(absl::Time now);

  const Options options_;
  SteadyClock steady_clock_;
  Clock* const clock_;
  int poll_ = -1, wake_ = -1;
  Listeners listeners_;
  // keyed by the acceptor's descriptor, which gRPC duplicates
  absl::flat_hash_map<int, Entry> entries_;
  uint32_t last_number_ = 0;
  absl::Time trimmed_ = absl::InfinitePast();
  bool closed_some_ = false;
  bool is_accept_paused_ = false;  // the listeners are not watched until the next check
  ThreadExecutor trimmer_{/*max_bytes=*/1};
  std::thread thread_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_ACCESS_CONNECTION_ACCEPTOR_H_
