#include "services/rpc/segment_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

constexpr int kBacklog = 16;
constexpr timeval kPatience{1, 0};

absl::Status Failed(const std::string& name, const char* what) {
  return absl::UnavailableError(
      absl::StrCat("shared memory socket ", name, ": ", what, ": ", strerror(errno)));
}

absl::StatusOr<socklen_t> FillAddress(const std::string& name, sockaddr_un* address) {
  if (name.empty() || name.size() >= sizeof(address->sun_path)) {
    errno = ENAMETOOLONG;
    return Failed(name, "name");
  }
  std::memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path, name.data(), name.size());
  if (name[0] != '@') return static_cast<socklen_t>(sizeof(*address));
  address->sun_path[0] = '\0';
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
}

// A message of one byte and one file descriptor. Because of padding, a received message may have
// two descriptors.
struct DescriptorMessage {
  char byte = 'h';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{nullptr, 0, &data, 1, control, sizeof(control), 0};
};

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<FileDescriptor> ConnectToUnix(const std::string& name) {
  sockaddr_un address;
  const absl::StatusOr<socklen_t> length = FillAddress(name, &address);
  if (!length.ok()) return length.status();
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return Failed(name, "socket");
  // The connect needs a timeout: if a store is alive but accepts no connections, its backlog fills.
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), *length) != 0) {
    const bool is_alive = errno == EAGAIN;
    const absl::Status failed = Failed(name, "connect");
    return is_alive ? absl::DeadlineExceededError(failed.message()) : failed;
  }
  return socket;
}

absl::StatusOr<FileDescriptor> ListenOnUnix(const std::string& name) {
  sockaddr_un address;
  const absl::StatusOr<socklen_t> length = FillAddress(name, &address);
  if (!length.ok()) return length.status();
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return Failed(name, "socket");
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  int bound = bind(socket.get(), generic, *length);
  if (bound != 0 && errno == EADDRINUSE && name[0] != '@' &&
      absl::IsUnavailable(ConnectToUnix(name).status())) {
    struct stat found;
    if (lstat(name.c_str(), &found) == 0 && S_ISSOCK(found.st_mode)) unlink(name.c_str());
    bound = bind(socket.get(), generic, *length);
  }
  if (bound != 0) return Failed(name, "bind");
  if (name[0] != '@' && chmod(name.c_str(), 0600) != 0) return Failed(name, "chmod");
  if (listen(socket.get(), kBacklog) != 0) return Failed(name, "listen");
  return socket;
}

bool SendDescriptor(int socket, int descriptor) {
  DescriptorMessage sent;
  cmsghdr* header = CMSG_FIRSTHDR(&sent.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  return sendmsg(socket, &sent.message, MSG_NOSIGNAL) == 1;
}

absl::StatusOr<FileDescriptor> ReceiveDescriptor(int socket) {
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  DescriptorMessage received;
  const ssize_t got = recvmsg(socket, &received.message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = CMSG_FIRSTHDR(&received.message);
  std::vector<FileDescriptor> descriptors;  // all that came, so that all are closed
  if (got == 1 && header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    const size_t bytes = header->cmsg_len - CMSG_LEN(0);
    for (size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + at, sizeof(int));
      descriptors.emplace_back(descriptor);
    }
  }
  if (descriptors.size() == 1) return std::move(descriptors.front());
  if (got == 0) {
    return absl::UnavailableError("shared memory: the store refused this process's user, or ended");
  }
  return absl::UnavailableError(absl::StrCat("shared memory: the store sent ", descriptors.size(),
                                             " file descriptors; expected 1"));
}

bool PeerIsSameUser(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

}  // namespace hearth
