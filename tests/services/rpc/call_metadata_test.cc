#include "services/rpc/call_metadata.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "tests/services/store/store_server.h"

namespace hearth {
namespace {

TEST(ServerTime, ComesWithAShortAnswer) {
  StoreServer server(StoreServer::SmallStore(""));
  // To the millisecond.
  const absl::Time before = absl::Now() - absl::Milliseconds(1);
  grpc::ClientContext context;
  v1::StatsResponse stats;
  ASSERT_TRUE(server.stub()->Stats(&context, {}, &stats).ok());
  const absl::Time told = ServerTimeOf(context).value_or(absl::InfinitePast());
  EXPECT_GE(told, before);
  EXPECT_LE(told, absl::Now());
}

}  // namespace
}  // namespace hearth
