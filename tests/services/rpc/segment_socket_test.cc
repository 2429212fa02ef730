// The unix socket through which a store gives its shared memory to workers.
#include "services/rpc/segment_socket.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

// A listener that accepts no connections, like a stopped or stuck store: its backlog is full.
TEST(SegmentSocket, FullBacklogTimesOut) {
  const TestFolder folder;
  const std::string name = absl::StrCat(folder.path(), "/segment");
  const absl::StatusOr<FileDescriptor> listening = ListenOnUnix(name);
  ASSERT_TRUE(listening.ok()) << listening.status();
  std::vector<FileDescriptor> waiting;
  absl::Status refused;
  while (refused.ok() && waiting.size() < 100) {
    absl::StatusOr<FileDescriptor> connected = ConnectToUnix(name);
    refused = connected.status();
    if (connected.ok()) waiting.push_back(*std::move(connected));
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(refused)) << refused;
  // The listener is alive, so a new server must not replace its socket.
  EXPECT_FALSE(ListenOnUnix(name).ok());
  EXPECT_EQ(access(name.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace hearth
