#include "services/tcp_socket.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace hearth {

ConnectionLedger::Counted CountedOfSocket(int fd) {
  tcp_info info;
  std::memset(&info, 0, sizeof(info));
  socklen_t bytes = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return {};
  int unread = 0;
  ioctl(fd, FIONREAD, &unread);
  return {info.tcpi_bytes_received, info.tcpi_bytes_acked, 0, std::nullopt,
          static_cast<uint64_t>(std::max(unread, 0))};
}

void CutSocket(int fd) {
  shutdown(fd, SHUT_RDWR);
  while (recv(fd, nullptr, size_t{1} << 20, MSG_DONTWAIT | MSG_TRUNC) > 0) {
  }
}

}  // namespace hearth
