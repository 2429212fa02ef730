// ConnectionAcceptor on a unix socket: it counts connections, and closes silent ones. The test's
// clock stands still until a test advances it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "services/serving/access/connection_acceptor.h"
#include "tests/support/fake_clock.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kLongS = 120;  // the test fails after this time; normally it needs milliseconds

class UnixCaller {
 public:
  explicit UnixCaller(const std::string& path) : fd_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un to;
    std::memset(&to, 0, sizeof(to));
    to.sun_family = AF_UNIX;
    path.copy(to.sun_path, sizeof(to.sun_path) - 1);
    const timeval hang{kLongS, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &hang, sizeof(hang));
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  ~UnixCaller() { close(fd_); }
  UnixCaller(const UnixCaller&) = delete;
  UnixCaller& operator=(const UnixCaller&) = delete;

  int fd() const { return fd_; }
  // Sends `text`. If the acceptor has refused this caller, nothing is sent.
  void Say(const char* text) const { send(fd_, text, std::strlen(text), MSG_NOSIGNAL); }
  // Waits until the acceptor closes the connection (true) or sends a byte (false).
  bool IsClosed() const {
    char byte = 0;
    const ssize_t got = recv(fd_, &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }
  bool IsOpen() const {
    char byte = 0;
    return recv(fd_, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
  }

 private:
  const int fd_;
};

class UnixAcceptorTest : public testing::Test {
 protected:
  UnixAcceptorTest() {
    ConnectionLimits limits;
    limits.connections = 3;
    tracker_.SetLimits(limits);
    ConnectionAcceptor::Options options;
    options.listen = "unix:" + path_;
    options.tracker = &tracker_;
    options.clock = &clock_;
    options.on_refused = [this](const std::string& peer, const std::string& why) {
      absl::MutexLock lock(&mutex_);
      refused_.push_back(peer.substr(0, 6) + " " + why);
    };
    options.take = [this](int, int fd) {
      absl::MutexLock lock(&mutex_);
      taken_.push_back(fd);
    };
    acceptor_ = *ConnectionAcceptor::Open(std::move(options));
    acceptor_->Start();
  }
  ~UnixAcceptorTest() override {
    acceptor_.reset();
    EndTaken();
  }
  // Closes the connections that were handed over, as gRPC does when a connection ends.
  void EndTaken() {
    absl::MutexLock lock(&mutex_);
    for (const int fd : taken_) {
      shutdown(fd, SHUT_RDWR);
      close(fd);
    }
    taken_.clear();
  }
  std::unique_ptr<UnixCaller> NewCaller() const { return std::make_unique<UnixCaller>(path_); }
  // Returns a new caller, when gRPC has got `taken` connections in total.
  std::unique_ptr<UnixCaller> NewAdmittedCaller(size_t taken) {
    auto caller = NewCaller();
    caller->Say("PRI * HTTP/2.0");
    absl::MutexLock lock(&mutex_);
    const auto are = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return taken_.size() == taken; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&are), absl::Seconds(kLongS)));
    return caller;
  }
  // Waits until the acceptor has accepted or refused `count` callers.
  void AwaitDecided(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto are = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return taken_.size() + refused_.size() >= count;
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&are), absl::Seconds(kLongS)));
  }
  size_t taken() {
    absl::MutexLock lock(&mutex_);
    return taken_.size();
  }
  std::vector<std::string> refused() {
    absl::MutexLock lock(&mutex_);
    return refused_;
  }

  const TestFolder folder_;
  const std::string path_ = folder_.File("socket");
  FakeClock clock_;
  ConnectionTracker tracker_;
  absl::Mutex mutex_;
  std::vector<int> taken_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> refused_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ConnectionAcceptor> acceptor_;
};

TEST_F(UnixAcceptorTest, NewConnectionReplacesSilentOne) {
  const std::unique_ptr<UnixCaller> silent[] = {NewCaller(), NewCaller(), NewCaller()};
  const auto newcomer = NewAdmittedCaller(1);
  std::vector<pollfd> ends;
  for (const auto& caller : silent) ends.push_back({caller->fd(), POLLIN, 0});
  EXPECT_EQ(poll(ends.data(), ends.size(), kLongS * 1000), 1) << "one made room";
  EXPECT_THAT(refused(), ElementsAre(HasSubstr("unix:# limit of 3 connections reached: closing "
                                               "the oldest idle connection")));
  clock_.Advance(absl::Seconds(11));
  for (const auto& caller : silent) EXPECT_TRUE(caller->IsClosed());
  EXPECT_TRUE(newcomer->IsOpen());
}

// A unix connection that was handed over may have calls, so the full acceptor does not close it and
// refuses the new caller.
TEST_F(UnixAcceptorTest, FullAcceptorRefusesNewcomer) {
  auto first = NewAdmittedCaller(1), second = NewAdmittedCaller(2), third = NewAdmittedCaller(3);
  const auto too_many = NewCaller();
  EXPECT_TRUE(too_many->IsClosed());
  EXPECT_THAT(refused(), ElementsAre("unix:# limit of 3 connections reached"));
  EXPECT_TRUE(first->IsOpen());
  EndTaken();
  EXPECT_TRUE(third->IsClosed());
  // The acceptor needs some time to notice that the connections have ended.
  std::unique_ptr<UnixCaller> next;
  for (size_t decided = 2; taken() == 0; ++decided) {
    next = NewCaller();
    next->Say("PRI * HTTP/2.0");
    AwaitDecided(decided);
  }
  EXPECT_TRUE(next->IsOpen());
}

TEST_F(UnixAcceptorTest, TlsClientGetsTlsAlert) {
  const auto caller = NewCaller();
  caller->Say("\x16\x03\x01");
  EXPECT_FALSE(caller->IsClosed()) << "an alert";
  EXPECT_THAT(refused(), ElementsAre(HasSubstr("the client uses TLS; this server does not")));
}

TEST_F(UnixAcceptorTest, OnlyOwnSocketFileIsRemoved) {
  struct stat there {};
  ASSERT_EQ(stat(path_.c_str(), &there), 0);
  EXPECT_TRUE(S_ISSOCK(there.st_mode));
  {
    // Open replaces the socket file, because no server listens on it any more.
    Listeners other("unix:" + path_);
    ASSERT_TRUE(other.Open().ok());
    acceptor_.reset();
    EXPECT_TRUE(std::filesystem::exists(path_));
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  const absl::Status refused = Listeners("unix:" + folder_.File("no/socket")).Open();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(
      std::string(refused.message()),
      ::testing::AllOf(HasSubstr("no/socket; check that the folder exists"), HasSubstr("No such")));
  folder_.Write("file", "mine");
  EXPECT_FALSE(Listeners("unix:" + folder_.File("file")).Open().ok());
  EXPECT_EQ(folder_.Read("file"), "mine");
  EXPECT_FALSE(Listeners("unix:" + std::string(200, 'x')).Open().ok());
}

}  // namespace
}  // namespace hearth
