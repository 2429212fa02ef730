// Tests how long hearthctl waits for a server.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

#include "services/rpc/transport_options.h"
#include "tests/services/hearthctl/run_cli.h"
#include "tests/services/store/store_server.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

// A server that listens on a unix socket and closes the first connection.
class HangUp {
 public:
  explicit HangUp(const std::string& path) : path_(path), fd_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    EXPECT_LT(path.size(), sizeof(address.sun_path));
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
  }
  // Accepts one connection and stops listening. Closes the connection after `silent_ms`
  // milliseconds. Returns whether the client was still connected at that time.
  bool TakeOneCall(int silent_ms = 0) {
    const int caller = accept(fd_, nullptr, nullptr);
    unlink(path_.c_str());
    close(fd_);
    pollfd leaves = {caller, POLLRDHUP, 0};
    const bool stayed = poll(&leaves, 1, silent_ms) == 0;
    close(caller);
    return stayed;
  }

 private:
  const std::string path_;
  const int fd_;
};

TEST(ConnectionTest, WaitFlagWaitsForLateServer) {
  TestFolder folder;
  const std::string path = folder.path() + "/s";
  HangUp early(path);
  CliResult result;
  std::thread client([&] {
    result = RunCli({"stats", "--store", "unix:" + path, "--wait", "60"});
  });
  early.TakeOneCall();  // makes the client's first attempt fail
  StoreServer server(StoreServer::SmallStore(""), "unix:" + path);
  client.join();
  EXPECT_EQ(result.code, kExitOk) << result.err;
}

TEST(ConnectionTest, FirstRefusalFailsWithoutWaitFlag) {
  TestFolder folder;
  const std::string path = folder.path() + "/s";
  HangUp early(path);
  CliResult result;
  std::thread client([&] { result = RunCli({"stats", "--store", "unix:" + path}); });
  early.TakeOneCall();
  client.join();
  EXPECT_EQ(result.code, kExitUnreachable);
  EXPECT_THAT(result.err, HasSubstr("no store at unix:" + path));
}

// On a busy machine a server may need seconds to answer. hearthctl must wait, although a worker's
// calls to its cache would have timed out.
TEST(ConnectionTest, SlowServerIsNotAbandoned) {
  TestFolder folder;
  const std::string path = folder.path() + "/s";
  HangUp late(path);
  std::thread client([&] { RunCli({"stats", "--store", "unix:" + path}); });
  EXPECT_TRUE(late.TakeOneCall(kConnectTimeoutMs + kConnectTimeoutMs / 2));
  client.join();
}

}  // namespace
}  // namespace hearth
