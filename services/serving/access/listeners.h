// Listeners: the listening sockets of a server: one for each address of a HOST:PORT, or a unix
// socket.
//
// Thread safety: one thread at a time. Ownership: the destructor closes the sockets, and removes a
// unix socket's file unless another server has put its own file there. Errors name the address.
#ifndef HEARTH_SERVICES_SERVING_ACCESS_LISTENERS_H_
#define HEARTH_SERVICES_SERVING_ACCESS_LISTENERS_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace hearth {

// Returns the error for an address on which a server cannot listen, kUnavailable. `hint`: advice
// for the operator, or "".
absl::Status CannotListen(const std::string& listen, const std::string& hint,
                          const std::string& why);

void SetOn(int fd, int level, int option);

class Listeners {
 public:
  // `listen`: "HOST:PORT", or "unix:PATH".
  explicit Listeners(std::string listen) : listen_(std::move(listen)) {}
  ~Listeners();
  Listeners(const Listeners&) = delete;
  Listeners& operator=(const Listeners&) = delete;

  // Starts to listen; kUnavailable if that fails. Replaces the socket file of a dead server. Call
  // once.
  absl::Status Open();
  // Returns kUnavailable if the port is in use, and listens on nothing. Ignores port 0 and unix
  // sockets. Call instead of Open.
  absl::Status Check();

  const std::vector<int>& fds() const { return fds_; }
  int port() const { return port_; }  // 0 for a unix socket
  // Whether this is a unix socket: only processes of this host can connect, and the kernel counts
  // no bytes.
  bool is_local() const { return !path_.empty(); }

 private:
  absl::Status Fail(const std::string& why) const;
  absl::Status OpenTcp(const std::string& host, const std::string& port);
  absl::Status ListenOn(int family, const void* address, size_t address_bytes);
  absl::Status OpenLocal(const std::string& path);

  const std::string listen_;
  bool only_checks_ = false;
  std::vector<int> fds_;
  int port_ = 0;
  std::string path_;  // path of the unix socket; empty: TCP
  dev_t device_ = 0;  // device of the socket's file, remembered when the file was made
  ino_t inode_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_ACCESS_LISTENERS_H_
