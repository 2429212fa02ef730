#include "services/serving/access/connection_tracker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "services/serving/calls/admission.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kUnit = 1000;

class ConnectionTrackerTest : public testing::Test {
 protected:
  ConnectionTrackerTest() {
    limits_.each_bytes = 10 * kUnit;
    limits_.stream_bytes = 2 * kUnit;
    limits_.all_bytes = 30 * kUnit;
    limits_.slack_bytes = kUnit / 2;
    limits_.call_bytes = 1;
    limits_.second_bytes = 0;
    tracker_.SetLimits(limits_);
  }
  std::shared_ptr<Connection> Add(const std::string& peer) { return tracker_.Add(peer, 0, now_); }
  // Calls FindExcessive. Returns {name of a connection to be closed: reason}.
  std::map<std::string, std::string> FindExcessive() {
    std::map<std::string, std::string> named;
    const auto counted = [this](const Connection& connection) {
      return ConnectionTracker::KernelBytes{received_[connection.peer()], sent_[connection.peer()]};
    };
    for (const auto& excess : tracker_.FindExcessive(now_, counted)) {
      named[excess.connection->peer()] = excess.why;
      received_.erase(excess.connection->peer());
      tracker_.Remove(excess.connection);
    }
    return named;
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  ConnectionLimits limits_;
  ConnectionTracker tracker_;
  std::map<std::string, uint64_t> received_, sent_;
};

TEST_F(ConnectionTrackerTest, ConsumedBytesAreNotCounted) {
  const auto a = Add("a");
  for (int i = 0; i < 100; ++i) {
    received_["a"] += 9 * kUnit;
    EXPECT_TRUE(FindExcessive().empty());
    a->AddConsumed(9 * kUnit);
    now_ += absl::Seconds(20);
    EXPECT_TRUE(FindExcessive().empty());
    EXPECT_EQ(tracker_.unconsumed_bytes(), 0u);
  }
}

TEST_F(ConnectionTrackerTest, UploadStreamsRaiseByteLimit) {
  const auto a = Add("a");
  received_["a"] = 11 * kUnit;
  a->CallBegins(/*is_upload=*/true);
  EXPECT_TRUE(FindExcessive().empty());
  a->CallEnds(/*is_upload=*/true);
  EXPECT_THAT(FindExcessive()["a"], HasSubstr("unfinished messages of 11000 bytes"));
  EXPECT_EQ(tracker_.connections(), 0u);
}

TEST_F(ConnectionTrackerTest, UnfinishedMessageTimesOut) {
  Add("slow");
  const auto steady = Add("steady");
  Add("small");
  received_ = {{"slow", kUnit}, {"steady", kUnit}, {"small", kUnit / 4}};
  EXPECT_TRUE(FindExcessive().empty());
  now_ += limits_.message_time;
  received_["slow"] += kUnit;  // a few bytes now and then do not extend the time limit
  received_["steady"] += kUnit;
  steady->AddConsumed(kUnit);
  EXPECT_TRUE(FindExcessive().empty());
  now_ += absl::Seconds(1);
  const auto named = FindExcessive();
  ASSERT_EQ(named.size(), 1u);
  EXPECT_THAT(named.at("slow"), HasSubstr("not read completely within 30s"));
}

TEST_F(ConnectionTrackerTest, TotalLimitClosesUnauthenticatedFirst) {
  for (const char* peer : {"a", "b", "c", "stranger"}) {
    const auto connection = Add(peer);
    if (peer != std::string("stranger")) connection->MarkAuthenticated();
  }
  received_ = {{"a", 9 * kUnit}, {"b", 10 * kUnit}, {"c", 8 * kUnit}, {"stranger", 7 * kUnit}};
  auto named = FindExcessive();
  ASSERT_EQ(named.size(), 1u);
  EXPECT_THAT(named.at("stranger"), HasSubstr("of all connections"));
  EXPECT_EQ(tracker_.unconsumed_bytes(), 27 * kUnit);
  Add("d")->MarkAuthenticated();
  received_["d"] = 5 * kUnit;
  named = FindExcessive();
  ASSERT_EQ(named.size(), 1u);
  EXPECT_EQ(named.count("b"), 1u);
}

TEST_F(ConnectionTrackerTest, SmallUnauthenticatedConnectionIsSpared) {
  for (const char* peer : {"a", "b", "c", "d"}) {
    Add(peer)->MarkAuthenticated();
    received_[peer] = 9 * kUnit;
  }
  Add("stranger");
  received_["stranger"] = limits_.slack_bytes;  // the first call of this connection is being sent
  const auto named = FindExcessive();
  EXPECT_EQ(named.size(), 1u);
  EXPECT_EQ(named.count("stranger"), 0u);
}

TEST_F(ConnectionTrackerTest, ExtraReportedBytesAreIgnored) {
  const auto a = Add("a");
  received_["a"] = kUnit;
  a->AddConsumed(100 * kUnit);
  EXPECT_TRUE(FindExcessive().empty());
  received_["a"] += 11 * kUnit;
  EXPECT_EQ(FindExcessive().size(), 1u);
}

TEST_F(ConnectionTrackerTest, ControlFramesAreNotUnconsumedBytes) {
  limits_.second_bytes = 10;
  tracker_.SetLimits(limits_);
  Add("a");
  for (int i = 0; i < 10000; ++i) {
    received_["a"] += 10;  // a ping
    now_ += absl::Seconds(1);
    ASSERT_TRUE(FindExcessive().empty());
  }
  for (int i = 0; i < 10000; ++i) {  // window updates during a long answer
    sent_["a"] += limits_.sent_share * 26 + 5;
    received_["a"] += 26;
    ASSERT_TRUE(FindExcessive().empty());
  }
  EXPECT_LT(tracker_.unconsumed_bytes(), kUnit);
}

TEST_F(ConnectionTrackerTest, UnauthenticatedThenIdleIsReplaced) {
  const auto known = Add("known");
  known->MarkAuthenticated();
  now_ += absl::Seconds(1);
  Add("old stranger");
  now_ += absl::Seconds(1);
  Add("young stranger");
  const auto newcomer = Add("newcomer");
  EXPECT_EQ(tracker_.FindReplaceable(*newcomer, now_)->peer(), "old stranger");
  EXPECT_EQ(tracker_.FindReplaceable(*newcomer, now_)->peer(), "young stranger")
      << "each goes once";
  EXPECT_EQ(tracker_.FindReplaceable(*newcomer, now_), nullptr);
  now_ += limits_.idle_time;
  known->CallBegins(/*is_upload=*/false);
  EXPECT_EQ(tracker_.FindReplaceable(*newcomer, now_), nullptr);
  known->CallEnds(/*is_upload=*/false);
  EXPECT_EQ(tracker_.FindReplaceable(*newcomer, now_)->peer(), "known");
}

TEST_F(ConnectionTrackerTest, ReusedPeerPortIsNewConnection) {
  const auto first = Add("a");
  const auto second = Add("a");
  tracker_.Remove(first);
  EXPECT_EQ(tracker_.Find("a"), second);
}

TEST(AdmissionConnections, CallsReportConsumedBytes) {
  Admission admission;
  const auto connection = admission.connections().Add("a", 0, absl::Now());
  const auto counted = [](const Connection&) { return ConnectionTracker::KernelBytes{1000000, 0}; };
  admission.connections().FindExcessive(absl::Now(), counted);
  const uint64_t held = admission.connections().unconsumed_bytes();
  auto call = admission.Enter("Fetch", "a", 900000);
  call->CountMessage(90000);
  admission.connections().FindExcessive(absl::Now(), counted);
  EXPECT_LE(admission.connections().unconsumed_bytes(), held - 990000);
  auto elsewhere = admission.Enter("Fetch", "unix:", 900000);
  elsewhere->CountMessage(1);
}

}  // namespace
}  // namespace hearth
