#include "services/serving/calls/call_gate.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "services/serving/calls/call_log.h"

namespace hearth {
namespace {

TEST(CallGate, LetsCallsInUntilItIsClosed) {
  CallGate gate;
  EXPECT_NE(gate.Enter("Fetch"), nullptr);
  gate.Close();
  EXPECT_TRUE(gate.closed());
  EXPECT_EQ(gate.Enter("Fetch"), nullptr);
  EXPECT_EQ(CallGate::ClosedError().code(), absl::StatusCode::kUnavailable);
}

TEST(CallGate, WaitsForTheCallsThatAreInside) {
  CallGate gate;
  auto call = gate.Enter("Fetch");
  gate.Close();
  EXPECT_FALSE(gate.WaitIdle(absl::Now()));
  EXPECT_EQ(gate.running(), 1);
  std::thread leaver([&] { call.reset(); });
  EXPECT_TRUE(gate.WaitIdle(absl::InfiniteFuture()));
  leaver.join();
  EXPECT_EQ(gate.running(), 0);
}

TEST(CallGate, RecordsMethodAndOutcomeOfEachCall) {
  std::vector<std::string> record;
  CallGate gate([&](const CallRecord& call) {
    EXPECT_GE(call.seconds, 0.0);
    record.push_back(std::string(call.method) + " " + absl::StatusCodeToString(call.code));
  });
  { auto call = gate.Enter("Fetch"); }
  {
    auto call = gate.Enter("Publish");
    EXPECT_EQ(call->Finish(absl::DataLossError("torn")), absl::DataLossError("torn"));
  }
  EXPECT_EQ(record, (std::vector<std::string>{"Fetch OK", "Publish DATA_LOSS"}));
}

TEST(CallGate, ACallWhoseClockStoppedIsInsideAndCostsNoMoreTime) {
  double recorded = -1;
  CallGate gate([&](const CallRecord& call) { recorded = call.seconds; });
  const absl::Time before = absl::Now();
  auto call = gate.Enter("Fetch");
  call->StopClock();
  const absl::Time after = absl::Now();
  EXPECT_EQ(gate.running(), 1);
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

TEST(CallGate, TellsListenersOnceWhenItCloses) {
  CallGate gate;
  int kept = 0, forgotten = 0;
  auto handle = gate.OnClose([&] { ++kept; });
  gate.OnClose([&] { ++forgotten; });  // the handle dies at once
  gate.Close();
  gate.Close();
  EXPECT_EQ(kept, 1);
  EXPECT_EQ(forgotten, 0);
}

TEST(CallGate, TellsAListenerThatComesTooLateAtOnce) {
  CallGate gate;
  gate.Close();
  int told = 0;
  auto handle = gate.OnClose([&] { ++told; });
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace hearth
