// HttpCaller: an HTTP client that sends exactly the bytes that the test gives.
//
// Thread safety: one thread.
#ifndef HEARTH_TESTS_SERVICES_SERVING_HTTP_CALLER_H_
#define HEARTH_TESTS_SERVICES_SERVING_HTTP_CALLER_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"

namespace hearth {

class HttpCaller {
 public:
  // `from`: the caller's IP address, 127.x.y.z.
  explicit HttpCaller(const std::string& address, const char* from = "127.0.0.1")
      : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    // A small receive buffer, so that the server soon has unsent bytes of an answer.
    const int buffer_bytes = 64 << 10;
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof(buffer_bytes));
    sockaddr_in own;
    std::memset(&own, 0, sizeof(own));
    own.sin_family = AF_INET;
    inet_pton(AF_INET, from, &own.sin_addr);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
    sockaddr_in to;
    std::memset(&to, 0, sizeof(to));
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval hang{kHangS, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &hang, sizeof(hang));
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  ~HttpCaller() { HangUp(); }
  HttpCaller(const HttpCaller&) = delete;
  HttpCaller& operator=(const HttpCaller&) = delete;

  void Say(const std::string& text) const {
    EXPECT_EQ(send(fd_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // Sends `text`. Returns false if the server has closed the connection.
  bool TrySay(const std::string& text) const {
    return send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  // Closes the sending half of the connection.
  void EndInput() const { EXPECT_EQ(shutdown(fd_, SHUT_WR), 0); }
  // Whether there are bytes to read, or the server has closed the connection.
  bool HasNews() const {
    pollfd wanted{fd_, POLLIN, 0};
    return !heard_.empty() || poll(&wanted, 1, 0) == 1;
  }
  // Reads up to and including `end`, or until the server closes. Returns the bytes.
  std::string HearUntil(const std::string& end) {
    size_t searched = 0;
    for (;;) {
      const size_t at = heard_.find(end, searched);
      if (at != std::string::npos) {
        const std::string until = heard_.substr(0, at + end.size());
        heard_.erase(0, until.size());
        return until;
      }
      searched = heard_.size() - std::min(heard_.size(), end.size());
      char bytes[1 << 16];
      const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
      if (n <= 0) return std::exchange(heard_, "");
      heard_.append(bytes, n);
    }
  }
  std::string HearAll() { return HearUntil("nobody says this"); }
  // Closes the connection with a reset, which the server notices at once.
  void Reset() {
    const linger reset{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    HangUp();
  }
  void HangUp() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  // the test fails after this time; normally it needs milliseconds
  static constexpr int kHangS = 120;

  int fd_;
  std::string heard_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_SERVING_HTTP_CALLER_H_
