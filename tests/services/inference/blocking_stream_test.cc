#include "services/inference/blocking_stream.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "services/rpc/slice_wire.h"
#include "tests/services/inference/scripted_store.h"
#include "tests/services/rpc/connected_to.h"

namespace hearth {
namespace {

using Stream = BlockingStream<grpc::ByteBuffer, grpc::ByteBuffer>;

TEST(BlockingStream, ItsPatienceEndsACallThatMayLiveLonger) {
  absl::Notification release;
  ScriptedStore store;
  store.fetch = [&](auto*, auto&, auto*) {
    release.WaitForNotification();
    return grpc::Status::OK;
  };
  grpc::ClientContext context;
  Stream stream(ConnectedTo(store.address()), "/hearth.v1.CacheStore/Fetch", &context,
                absl::Now() + absl::Milliseconds(50));
  stream.WriteLast(MessageBytes(v1::FetchRequest()));
  grpc::ByteBuffer bytes;
  EXPECT_FALSE(stream.Read(&bytes));
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  release.Notify();
  store.Stop();  // its call may only now be looking at `release`
}

}  // namespace
}  // namespace hearth
