#include "services/serving/calls/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "cache_store/base/clock.h"
#include "services/serving/calls/call_log.h"
#include "tests/support/fake_clock.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

TEST(Admission, CloseRefusesNewCalls) {
  Admission admission;
  EXPECT_NE(admission.Enter("Fetch"), nullptr);
  admission.Close();
  EXPECT_TRUE(admission.closed());
  EXPECT_EQ(admission.Enter("Fetch"), nullptr);
  EXPECT_EQ(Admission::ClosedError().code(), absl::StatusCode::kUnavailable);
}

TEST(Admission, WaitIdleWaitsForCalls) {
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

TEST(Admission, RecordsMethodAndOutcome) {
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

TEST(Admission, StoppedClockExcludesLaterTime) {
  double recorded = -1;
  Admission admission([&](const CallRecord& call) { recorded = call.seconds; });
  SteadyClock clock;  // the clock of an Admission
  const absl::Time before = clock.Now();
  auto call = admission.Enter("Fetch");
  call->StopClock();
  const absl::Time after = clock.Now();
  EXPECT_EQ(admission.running(), 1);
  while (clock.Now() <= after) std::this_thread::yield();
  call.reset();
  EXPECT_LE(recorded, absl::ToDoubleSeconds(after - before));
}

TEST(CallLog, SlowThresholdGrowsWithTokens) {
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

TEST(Admission, CloseEndsEachCallOnce) {
  Admission admission;
  int kept = 0, forgotten = 0;
  auto call = admission.Enter("Watch"), other = admission.Enter("Watch");
  call->EndBy([&](EndReason reason, const absl::Status& why) {
    EXPECT_EQ(reason, EndReason::kDrain);
    EXPECT_EQ(why, Admission::ClosedError());
    ++kept;
  });
  other->EndBy([&](EndReason, const absl::Status&) { ++forgotten; });
  other.reset();
  admission.Close();
  admission.Close();
  EXPECT_EQ(kept, 1);
  EXPECT_EQ(forgotten, 0);
}

TEST(Admission, EndFunctionSetAfterCloseIsCalled) {
  Admission admission;
  auto call = admission.Enter("Watch");
  admission.Close();
  int told = 0;
  call->EndBy([&](EndReason, const absl::Status&) { ++told; });
  EXPECT_EQ(told, 1);
}

Identity Tenant(const std::string& name) { return Identity{name, Role::kTenant, name, ""}; }
Identity Worker() { return Identity{"worker", Role::kWorker, kDefaultTenant, ""}; }

// Calls of one kind, which all wait for their callers.
class AdmissionPlacesTest : public testing::Test {
 protected:
  struct Stream {
    absl::Status Ended() ABSL_LOCKS_EXCLUDED(mutex) {
      absl::MutexLock lock(&mutex);
      return ended;
    }
    absl::Mutex mutex;
    absl::Status ended ABSL_GUARDED_BY(mutex);
    std::unique_ptr<Admission::Call> call;
  };

  AdmissionPlacesTest() { admission_.SetClock(&clock_); }
  // Begins a call. Returns null if the call was refused; refusal_ has the reason.
  std::shared_ptr<Stream> Enter(const Identity& caller) {
    auto stream = std::make_shared<Stream>();
    stream->call = admission_.Enter("Publish");
    refusal_ = stream->call->TakePlace(kLimit, caller);
    if (!refusal_.ok()) return nullptr;
    stream->call->EndBy([raw = stream.get()](EndReason reason, const absl::Status& why) {
      EXPECT_EQ(reason, EndReason::kPace);
      absl::MutexLock lock(&raw->mutex);
      EXPECT_TRUE(raw->ended.ok()) << "once";
      raw->ended = why;
    });
    stream->call->SetWaitingForCaller(true);
    return stream;
  }
  // Each stream in `moved` transfers its number of bytes. Then the clock advances by `time`.
  void Pass(absl::Duration time,
            const std::vector<std::pair<std::shared_ptr<Stream>, uint64_t>>& moved = {}) {
    for (const auto& [stream, bytes] : moved) stream->call->AddTransferred(bytes);
    clock_.Advance(time);
    admission_.CheckCalls();
  }

  static constexpr Limit kLimit{"publish", 4, 1000};
  FakeClock clock_;
  Admission admission_;
  absl::Status refusal_;
};

TEST_F(AdmissionPlacesTest, TooSlowCallIsEnded) {
  const auto trickles = Enter(Identity()), steady = Enter(Identity());
  for (int i = 0; i < 5; ++i) Pass(absl::Seconds(50), {{trickles, 1}, {steady, 2000}});
  EXPECT_EQ(trickles->Ended().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(trickles->Ended().message()), HasSubstr("transferred 2 bytes in 1m40s"));
  EXPECT_TRUE(steady->Ended().ok());
}

TEST_F(AdmissionPlacesTest, ServerDelayDoesNotEndCall) {
  const auto commits = Enter(Identity());
  commits->call->SetWaitingForCaller(false);
  for (int i = 0; i < 10; ++i) Pass(absl::Seconds(50));
  commits->call->SetWaitingForCaller(true);
  Pass(absl::Seconds(59));
  EXPECT_TRUE(commits->Ended().ok());
  Pass(absl::Seconds(1));
  EXPECT_FALSE(commits->Ended().ok());
}

TEST_F(AdmissionPlacesTest, FinalWriteGetsOneSecond) {
  const auto over = Enter(Identity());
  over->call->AddTransferred(1000000);
  over->call->BeginFinalWrite();
  Pass(absl::Milliseconds(900));
  EXPECT_TRUE(over->Ended().ok());
  Pass(absl::Milliseconds(100));
  EXPECT_FALSE(over->Ended().ok());
}

TEST_F(AdmissionPlacesTest, CallOverLimitIsRefused) {
  const auto slow = Enter(Tenant("a")), slower = Enter(Tenant("a")), b = Enter(Tenant("b"));
  const auto worker = Enter(Worker());
  Pass(absl::Seconds(59), {{slow, 10}});
  EXPECT_EQ(Enter(Tenant("c")), nullptr) << "all are full";
  EXPECT_THAT(std::string(refusal_.message()),
              HasSubstr("publish: limit of 4 open streams reached"));
  admission_.CheckCalls();
  for (const auto& stream : {b, slow, slower, worker}) EXPECT_TRUE(stream->Ended().ok());
}

TEST_F(AdmissionPlacesTest, TenantsShareStreamLimit) {
  const auto first = Enter(Tenant("a")), second = Enter(Tenant("a"));
  EXPECT_EQ(Enter(Tenant("a")), nullptr) << "a lone tenant has half";
  EXPECT_THAT(std::string(refusal_.message()), HasSubstr("tenant \"a\" has 2 open streams"));
  const auto b = Enter(Tenant("b"));
  EXPECT_EQ(Enter(Tenant("b")), nullptr) << "the last place is for a tenant that has none";
  const auto c = Enter(Tenant("c"));
  EXPECT_NE(c, nullptr) << refusal_;
  EXPECT_EQ(Enter(Identity()), nullptr);
  EXPECT_TRUE(first->call->Finish(absl::OkStatus()).ok());
  EXPECT_NE(Enter(Identity()), nullptr) << "a caller without an identity is no tenant";
}

TEST(Admission, BusyTenantsLeaveStreamsForOthers) {
  Admission admission;
  const Limit limit{"fetch", 256};
  std::vector<std::unique_ptr<Admission::Call>> calls;
  const auto take = [&](const std::string& tenant) {
    auto call = admission.Enter("Fetch");
    if (!call->TakePlace(limit, Tenant(tenant)).ok()) return false;
    calls.push_back(std::move(call));
    return true;
  };
  for (int i = 0; i < 1000; ++i) take("loud");
  for (int i = 0; i < 1000; ++i) take("louder");
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(take("quiet")) << i;
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(take("shy")) << i;
}

TEST_F(AdmissionPlacesTest, WorkerCallCountsForNamedTenant) {
  std::vector<std::shared_ptr<Stream>> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(Enter(Worker()));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(streams[i]->call->ChargeTenant("a").ok());
  const absl::Status refused = streams[2]->call->ChargeTenant("a");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("tenant \"a\" has 2 open streams"));
  EXPECT_TRUE(streams[3]->call->ChargeTenant("b").ok());
  // On a server without identities, all callers have the same identity, and the limit is not
  // divided.
  streams.clear();
  for (int i = 0; i < 4; ++i) streams.push_back(Enter(Identity()));
  for (const auto& stream : streams) EXPECT_TRUE(stream->call->ChargeTenant("default").ok());
}

TEST(Admission, LargeCallCountsAsSeveralStreams) {
  Admission admission;
  const Limit limit{"lease", 10};
  const auto take = [&](const Identity& caller, int weight) {
    auto call = admission.Enter("Lease");
    return call->TakePlace(limit, caller, weight).ok() ? std::move(call) : nullptr;
  };
  auto large = take(Tenant("a"), 3);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(take(Tenant("a"), 5), nullptr);
  EXPECT_NE(take(Tenant("a"), 4), nullptr);
  EXPECT_EQ(take(Identity(), 8), nullptr);
  EXPECT_NE(take(Identity(), 7), nullptr);
  large.reset();
  EXPECT_EQ(take(Tenant("a"), 11), nullptr);
  EXPECT_NE(take(Identity(), 10), nullptr) << "all was given back";
}

TEST(Admission, ReservedBytesAreReleased) {
  Admission admission;
  const Limit limit{"state", 4, 1, 100, "twice --pool-bytes"};
  auto first = admission.Enter("SaveState"), second = admission.Enter("LoadState");
  ASSERT_TRUE(first->TakePlace(limit, Tenant("a")).ok());
  ASSERT_TRUE(second->TakePlace(limit, Tenant("b")).ok());
  EXPECT_TRUE(first->Reserve(80).ok());
  const absl::Status refused = second->Reserve(21);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("state: needs 21 bytes; other calls hold 80 bytes of the limit, 100 (twice "
                        "--pool-bytes)"));
  EXPECT_TRUE(second->Reserve(20).ok());
  EXPECT_TRUE(first->Reserve(10).ok()) << "fewer";
  EXPECT_TRUE(second->Reserve(90).ok());
  EXPECT_TRUE(second->Finish(absl::OkStatus()).ok());
  EXPECT_TRUE(first->Reserve(100).ok());
  // There must be room for the bytes that a call announces, but they are not reserved.
  auto third = admission.Enter("LoadState");
  ASSERT_TRUE(third->TakePlace(limit, Tenant("b")).ok());
  EXPECT_TRUE(first->Reserve(10, 100).ok());
  EXPECT_TRUE(third->Reserve(90).ok());
  EXPECT_THAT(std::string(first->Reserve(10, 11).message()),
              HasSubstr("state: needs 11 bytes; other calls hold 90"));
}

CallRecord Record(const char* method, const std::string& tenant, uint64_t tokens) {
  CallRecord record;
  record.method = method;
  record.note.tenant = tenant;
  record.note.tokens = tokens;
  return record;
}

TEST(CallLog, LogsRequestsAndCallsOfSampledTraces) {
  Metrics metrics("hearth_test");
  const Admission::Recorder log = RecordCalls(&metrics);
  CallRecord sampled = Record("Fetch", "acme", 9);
  sampled.note.span = NewSpan("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  testing::internal::CaptureStderr();
  log(Record("Fetch", "acme", 1));
  log(Record("Generate", "", 2));
  log(Record("Generate", "acme", 3));
  log(sampled);
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2) << lines;
  EXPECT_THAT(lines, HasSubstr("info call method=Generate "));
  EXPECT_THAT(lines, HasSubstr("tokens=3"));
  EXPECT_THAT(lines, HasSubstr(" trace_id=0af7651916cd43dd8448eb211c80319c span_id=" +
                               sampled.note.span.span_id + " parent_span_id=b7ad6b7169203331 "));
}

TEST(CallLog, RefusedRequestsDoNotFillTheLog) {
  Metrics metrics("hearth_test");
  const Admission::Recorder log = RecordCalls(&metrics);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 100; ++i) log(Record("Generate", "acme", 0));
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(lines.begin(), lines.end(), '\n'), 6) << lines;
  EXPECT_THAT(lines, HasSubstr("call method=Generate"));
}

TEST(CallLog, TimesAddUp) {
  Metrics metrics("hearth_test");
  CallRecord record = Record("Prefill", "acme", 5);
  record.seconds = 0.1;
  record.note.times.prompt = 1;
  record.note.times.fetch = 10;
  record.note.times.lookup = 4;
  record.note.times.prefill = 60;
  record.note.times.until_now = 71;
  testing::internal::CaptureStderr();
  RecordCalls (&metrics)(record);
  const std::string line = testing::internal::GetCapturedStderr();
  for (const char* part : {"prompt_ms=1.0", "queue_ms=0.0", "lookup_ms=4.0", "load_ms=6.0",
                           "prefill_ms=60.0", "decode_ms=0.0", "publish_ms=29.0"}) {
    EXPECT_THAT(line, HasSubstr(part));
  }
}

}  // namespace
}  // namespace hearth
