#include "services/inference/blocking_stream.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "services/rpc/slice_wire.h"
#include "tests/services/inference/scripted_store.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/support/fake_clock.h"

namespace hearth {
namespace {

// Makes a call that the store never answers, with a deadline of 50 ms by `clock`. Null: the
// stream's own clock.
void ExpectLate(Clock* clock) {
  absl::Notification release;
  ScriptedStore store;
  store.fetch = [&](auto*, auto&, auto*) {
    release.WaitForNotification();
    return grpc::Status::OK;
  };
  grpc::ClientContext context;
  const absl::Time now = clock == nullptr ? SteadyClock().Now() : clock->Now();
  BlockingStream stream(ConnectedTo(store.address()), "/hearth.v1.CacheStore/Fetch", &context,
                        now + absl::Milliseconds(50), clock);
  stream.WriteLast(MessageBytes(v1::FetchRequest()));
  grpc::ByteBuffer bytes;
  EXPECT_FALSE(stream.Read(&bytes));
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  release.Notify();
  store.Stop();  // stop first, because the store's call may still read `release`
}

TEST(BlockingStream, SilentCallEndsAtDeadline) { ExpectLate(nullptr); }

// The system clock is set back by a day: a stream that used it would wait for a day.
TEST(BlockingStream, SettingClockDoesNotExtendDeadline) {
  FakeClock clock;
  clock.Advance(absl::Now() + absl::Hours(24) - clock.Now());
  ExpectLate(&clock);
}

}  // namespace
}  // namespace hearth
