// Sends a file descriptor to another process of this host, over a unix socket.
//
// Names of sockets: "@name" is in the abstract namespace of the network namespace, has no file on
// disk and ends with the socket. Any other name is a path. Thread safety: pure functions on their
// arguments.
// Errors: kUnavailable with the socket's name and the system's reason.
#ifndef HEARTH_SERVICES_RPC_SEGMENT_SOCKET_H_
#define HEARTH_SERVICES_RPC_SEGMENT_SOCKET_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace hearth {

// Owns a file descriptor, and closes it.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Returns a listening socket. Replaces the socket file of a dead process, but not of a live one.
absl::StatusOr<FileDescriptor> ListenOnUnix(const std::string& name);
absl::StatusOr<FileDescriptor> ConnectToUnix(const std::string& name);

// Sends one byte with `descriptor`. Returns false if the peer is gone.
bool SendDescriptor(int socket, int descriptor);
// Waits at most one second for a descriptor from the peer.
absl::StatusOr<FileDescriptor> ReceiveDescriptor(int socket);

// Whether the process at the other end runs as this process's user, or as root.
bool PeerIsSameUser(int socket);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_SEGMENT_SOCKET_H_
