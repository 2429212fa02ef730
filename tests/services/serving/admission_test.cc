#include "services/serving/calls/admission.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "services/serving/calls/call_log.h"

namespace hearth {
namespace {

TEST(Admission, LetsCallsInUntilItIsClosed) {
  Admission admission;
  EXPECT_NE(admission.Enter("Fetch"), nullptr);
  admission.Close();
  EXPECT_TRUE(admission.closed());
  EXPECT_EQ(admission.Enter("Fetch"), nullptr);
  EXPECT_EQ(Admission::ClosedError().code(), absl::StatusCode::kUnavailable);
}

TEST(Admission, WaitsForTheCallsThatAreInside) {
  Admission admission;
  auto call = admission.Enter("Fetch");
  admission.Close();
  EXPECT_FALSE(admission.WaitIdle(absl::Now()));
  EXPECT_EQ(admission.running(), 1);
  std::thread leaver([&] { call.reset(); });
  EXPECT_TRUE(admission.WaitIdle(absl::InfiniteFuture()));
  leaver.join();
  EXPECT_EQ(admission.running(), 0);
}

TEST(Admission, RecordsMethodAndOutcomeOfEachCall) {
  std::vector<std::string> record;
  Admission admission([&](const CallRecord& call) {
    EXPECT_GE(call.seconds, 0.0);
    record.push_back(std::string(call.method) + " " + absl::StatusCodeToString(call.code));
  });
  { auto call = admission.Enter("Fetch"); }
  {
    auto call = admission.Enter("Publish");
    EXPECT_EQ(call->Finish(absl::DataLossError("torn")), absl::DataLossError("torn"));
  }
  EXPECT_EQ(record, (std::vector<std::string>{"Fetch OK", "Publish DATA_LOSS"}));
}

TEST(Admission, ACallWhoseClockStoppedIsInsideAndCostsNoMoreTime) {
  double recorded = -1;
  Admission admission([&](const CallRecord& call) { recorded = call.seconds; });
  const absl::Time before = absl::Now();
  auto call = admission.Enter("Fetch");
  call->StopClock();
  const absl::Time after = absl::Now();
  EXPECT_EQ(admission.running(), 1);
  while (absl::Now() <= after) std::this_thread::yield();
  call.reset();
  EXPECT_LE(recorded, absl::ToDoubleSeconds(after - before));
}

TEST(CallLog, ACallIsSlowForWhatItHadToDo) {
  CallRecord record;
  record.method = "Stats";
  record.seconds = 11;
  EXPECT_TRUE(IsSlow(record));
  record.method = "Generate";
  EXPECT_TRUE(IsSlow(record)) << "and nothing was computed";
  record.note.tokens = 1000;
  record.note.hit_tokens = 990;
  EXPECT_TRUE(IsSlow(record)) << "nearly all was restored";
  record.note.hit_tokens = 0;
  EXPECT_FALSE(IsSlow(record));
  record.seconds = 100;
  EXPECT_TRUE(IsSlow(record));
  record.note.generated = 200;
  EXPECT_FALSE(IsSlow(record));
}

TEST(Admission, TellsListenersOnceWhenItCloses) {
  Admission admission;
  int kept = 0, forgotten = 0;
  auto handle = admission.OnClose([&] { ++kept; });
  admission.OnClose([&] { ++forgotten; });  // the handle dies at once
  admission.Close();
  admission.Close();
  EXPECT_EQ(kept, 1);
  EXPECT_EQ(forgotten, 0);
}

TEST(Admission, TellsAListenerThatComesTooLateAtOnce) {
  Admission admission;
  admission.Close();
  int told = 0;
  auto handle = admission.OnClose([&] { ++told; });
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace hearth
