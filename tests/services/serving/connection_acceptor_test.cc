// ConnectionAcceptor with silent and with disconnected callers. The test's clock stands still until
// a test advances it.
#include "services/serving/access/connection_acceptor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/support/fake_clock.h"

namespace hearth {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kHangS = 120;  // the test fails after this time; normally it needs milliseconds

// The connection of one caller, which the destructor closes.
class TcpCaller {
 public:
  TcpCaller() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {}
  explicit TcpCaller(int port) : TcpCaller() { Connect(port); }
  ~TcpCaller() { close(fd_); }
  int fd() const { return fd_; }
  TcpCaller(const TcpCaller&) = delete;
  TcpCaller& operator=(const TcpCaller&) = delete;

  void Connect(int port) const {
    sockaddr_in to;
    std::memset(&to, 0, sizeof(to));
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval hang{kHangS, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &hang, sizeof(hang));
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  void Say(const std::string& text) const {
    EXPECT_EQ(send(fd_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // Waits until the acceptor closes the connection (true) or sends a byte (false).
  bool IsClosed() const {
    char byte = 0;
    const ssize_t got = recv(fd_, &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }
  bool IsClosedAlready() const {
    char byte = 0;
    const ssize_t got = recv(fd_, &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }

 private:
  const int fd_;
};

class ConnectionAcceptorTest : public testing::Test {
 protected:
  ConnectionAcceptorTest() {
    ConnectionAcceptor::Options options;
    options.listen = "127.0.0.1:0";
    options.tracker = &tracker_;
    options.clock = &clock_;
    options.first_byte = absl::Hours(1);  // only clock_ can make a caller time out
    options.on_refused = [this](const std::string&, const std::string& why) {
      absl::MutexLock lock(&mutex_);
      refused_.push_back(why);
    };
    options.take = [this](int, int fd) {
      absl::MutexLock lock(&mutex_);
      taken_.push_back(fd);
    };
    options.trim = [this] {
      if (!trims_.HasBeenNotified()) trims_.Notify();  // a slow test may cause a second trim
      may_trim_.WaitForNotification();
    };
    acceptor_ = *ConnectionAcceptor::Open(std::move(options));
    acceptor_->Start();
  }
  ~ConnectionAcceptorTest() override {
    if (!may_trim_.HasBeenNotified()) may_trim_.Notify();
    acceptor_.reset();
    absl::MutexLock lock(&mutex_);
    for (const int fd : taken_) close(fd);
  }
  std::unique_ptr<TcpCaller> NewCaller() { return std::make_unique<TcpCaller>(acceptor_->port()); }
  void AwaitTaken(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto are = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return taken_.size() == count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&are), absl::Seconds(kHangS)));
  }
  void AwaitRefused(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto are = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return refused_.size() >= count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&are), absl::Seconds(kHangS)));
  }
  // Waits until the acceptor has closed `count` of the callers' connections without an answer.
  static void AwaitClosed(const std::vector<std::unique_ptr<TcpCaller>>& callers, size_t count) {
    std::vector<pollfd> open;
    for (const auto& caller : callers) open.push_back({caller->fd(), POLLIN, 0});
    for (size_t closed = 0; closed < count;) {
      ASSERT_GT(poll(open.data(), open.size(), kHangS * 1000), 0) << closed << " were closed";
      for (pollfd& each : open) {
        if (each.revents == 0) continue;
        each.fd = -1;
        ++closed;
      }
    }
  }
  std::vector<std::string> refused() {
    absl::MutexLock lock(&mutex_);
    return refused_;
  }

  FakeClock clock_;
  ConnectionTracker tracker_;
  absl::Notification trims_, may_trim_;
  absl::Mutex mutex_;
  std::vector<std::string> refused_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> taken_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ConnectionAcceptor> acceptor_;
};

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// The acceptor must use the given clock: by the wall clock, the test would wait for an hour.
TEST_F(ConnectionAcceptorTest, SilentCallerTimesOut) {
  const auto silent = NewCaller();
  const auto talks = NewCaller();
  talks->Say(kPreface);
  AwaitTaken(1);  // waits until the first caller was accepted
  EXPECT_FALSE(silent->IsClosedAlready());
  clock_.Advance(absl::Hours(2));
  EXPECT_TRUE(silent->IsClosed());
  EXPECT_FALSE(talks->IsClosedAlready());
}

TEST_F(ConnectionAcceptorTest, AcceptsWhileTrimmingMemory) {
  ConnectionLimits limits;
  limits.each_bytes = 1024;
  limits.second_bytes = 0;
  tracker_.SetLimits(limits);
  const auto sends_much = NewCaller();
  sends_much->Say(kPreface);
  AwaitTaken(1);
  sends_much->Say(std::string(size_t{64} << 10, 'x'));
  while (refused().empty()) {
    clock_.Advance(absl::Seconds(1));
    std::this_thread::yield();
  }
  clock_.Advance(absl::Seconds(10));
  trims_.WaitForNotification();
  const auto next = NewCaller();
  next->Say(kPreface);
  AwaitTaken(2);
}

bool ListensOn(int fd, int port) {
  int listens = 0;
  socklen_t bytes = sizeof(listens);
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0)
    return false;
  sockaddr_in at;
  bytes = sizeof(at);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&at), &bytes) == 0 &&
         ntohs(at.sin_port) == port;
}

// Returns the number of descriptors that the epoll instance of the acceptor on `port` watches. The
// process may have other epoll instances, whose numbers change at any time.
size_t WatchedDescriptors(int port) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
    std::ifstream info(entry.path());
    size_t count = 0;
    bool is_acceptor = false;
    for (std::string line; std::getline(info, line);) {
      int fd = -1;
      if (std::sscanf(line.c_str(), "tfd: %d", &fd) != 1) continue;
      ++count;
      is_acceptor |= ListensOn(fd, port);
    }
    if (is_acceptor) return count;
  }
  ADD_FAILURE() << "no epoll instance watches port " << port;
  return 0;
}

// If the acceptor still watched an ended connection, epoll would report its end again and again.
TEST_F(ConnectionAcceptorTest, EndedConnectionIsNotWatched) {
  const size_t before = WatchedDescriptors(acceptor_->port());
  auto dies = NewCaller();
  dies->Say(kPreface);
  AwaitTaken(1);
  const linger reset{1, 0};
  setsockopt(dies->fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  dies.reset();
  while (tracker_.connections() > 0) std::this_thread::yield();
  const auto next = NewCaller();
  next->Say(kPreface);
  AwaitTaken(2);  // the same thread has closed the first connection before
  EXPECT_EQ(WatchedDescriptors(acceptor_->port()), before + 1);
}

// While this object lives, the process can open only `left` more descriptors.
class FewDescriptorsLeft {
 public:
  explicit FewDescriptorsLeft(size_t left) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const rlimit few{static_cast<rlim_t>(next) + 1, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    for (int fd = next; fd >= 0; fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) taken_.push_back(fd);
    for (; left > 0; --left) {
      close(taken_.back());
      taken_.pop_back();
    }
  }
  ~FewDescriptorsLeft() {
    for (const int fd : taken_) close(fd);
    setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

// If the acceptor called accept again at once, the same error would be reported again and again.
TEST_F(ConnectionAcceptorTest, AcceptFailureIsReportedOncePerCheck) {
  const auto first = NewCaller();
  first->Say(kPreface);
  AwaitTaken(1);  // afterwards the acceptor has made a check
  TcpCaller caller;
  {
    const FewDescriptorsLeft none(0);
    caller.Connect(acceptor_->port());
    caller.Say(kPreface);
    AwaitRefused(1);
    EXPECT_THAT(refused(), Each(HasSubstr("accept failed: Too many open files")));
    clock_.Advance(absl::Seconds(1));
    AwaitRefused(2);
  }
  EXPECT_EQ(refused().size(), 2u);
  AwaitTaken(1);
  clock_.Advance(absl::Seconds(1));
  AwaitTaken(2);
  EXPECT_EQ(refused().size(), 2u);
}

// Accepting a connection needs one descriptor; handing it to gRPC needs a second.
TEST_F(ConnectionAcceptorTest, HandoverFailureNamesReason) {
  const auto first = NewCaller();
  first->Say(kPreface);
  AwaitTaken(1);
  const TcpCaller caller;
  {
    const FewDescriptorsLeft one(1);
    caller.Connect(acceptor_->port());
    caller.Say(kPreface);
    EXPECT_TRUE(caller.IsClosed());
    AwaitRefused(1);
  }
  EXPECT_THAT(refused(), ElementsAre(HasSubstr("closed after an error: Too many open files")));
  AwaitTaken(1);
}

}  // namespace
}  // namespace hearth
