#include "services/serving/door/tcp_socket.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace hearth {

ConnectionLedger::Counted CountedOfSocket(int fd) {
  tcp_info info;
  std::memset(&info, 0, sizeof(info));
  socklen_t bytes = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return {};
  return {info.tcpi_bytes_received, info.tcpi_bytes_acked};
}

void CutSocket(int fd) {
  shutdown(fd, SHUT_RDWR);
  while (recv(fd, nullptr, size_t{1} << 20, MSG_DONTWAIT | MSG_TRUNC) > 0) {
  }
}

void SetOn(int fd, int level, int option) {
  const int on = 1;
  setsockopt(fd, level, option, &on, sizeof(on));
}

bool IsOfOneConnection(int error) {
  switch (error) {
    case EAGAIN:
    case EINTR:
    case ECONNABORTED:
    // Errors of the network from before the connection was taken, accept(2).
    case ENETDOWN:
    case EPROTO:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
      return true;
    default:
      return false;
  }
}

}  // namespace hearth
