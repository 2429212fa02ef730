#include "services/serving/door/connection_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "services/serving/calls/call_gate.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kUnit = 1000;

class ConnectionLedgerTest : public testing::Test {
 protected:
  ConnectionLedgerTest() {
    limits_.each_bytes = 10 * kUnit;
    limits_.stream_bytes = 2 * kUnit;
    limits_.all_bytes = 30 * kUnit;
    limits_.slack_bytes = kUnit / 2;
    limits_.call_bytes = 1;
    limits_.second_bytes = 0;
    limits_.open_call_bytes = 0;
    ledger_.SetLimits(limits_);
  }
  std::shared_ptr<Connection> Add(const std::string& peer) { return ledger_.Add(peer, 0, now_); }
  // Looks, and says of whom it named why.
  std::map<std::string, std::string> Judge() {
    std::map<std::string, std::string> named;
    const auto counted = [this](const Connection& connection, bool) {
      return ConnectionLedger::Counted{received_[connection.peer()], sent_[connection.peer()],
                                       streams_[connection.peer()], given_up_[connection.peer()]};
    };
    for (const auto& verdict : ledger_.Judge(now_, counted)) {
      named[verdict.connection->peer()] = verdict.why;
      received_.erase(verdict.connection->peer());
      ledger_.Remove(verdict.connection, now_);
    }
    return named;
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  ConnectionLimits limits_;
  ConnectionLedger ledger_;
  std::map<std::string, uint64_t> received_, sent_, streams_, given_up_;
};

TEST_F(ConnectionLedgerTest, WhatCallsTakeIsNotHeld) {
  const auto a = Add("a");
  for (int i = 0; i < 100; ++i) {
    received_["a"] += 9 * kUnit;
    EXPECT_TRUE(Judge().empty());
    a->Taken(9 * kUnit);
    now_ += absl::Seconds(20);
    EXPECT_TRUE(Judge().empty());
    EXPECT_EQ(ledger_.untaken_bytes(), 0u);
  }
}

TEST_F(ConnectionLedgerTest, OneConnectionMayHoldItsShareAndStreamsMore) {
  const auto a = Add("a");
  received_["a"] = 11 * kUnit;
  a->StreamBegins();
  EXPECT_TRUE(Judge().empty());
  a->StreamEnds();
  EXPECT_THAT(Judge()["a"], HasSubstr("11000 bytes of unfinished messages"));
  EXPECT_EQ(ledger_.connections(), 0u);
}

TEST_F(ConnectionLedgerTest, AMessageIsWholeInTimeOrItsConnectionGoes) {
  Add("slow");
  const auto steady = Add("steady");
  Add("small");
  received_ = {{"slow", kUnit}, {"steady", kUnit}, {"small", kUnit / 4}};
  EXPECT_TRUE(Judge().empty());
  now_ += limits_.message_time;
  received_["slow"] += kUnit;  // a byte now and then is no help
  received_["steady"] += kUnit;
  steady->Taken(kUnit);
  EXPECT_TRUE(Judge().empty());
  now_ += absl::Seconds(1);
  const auto named = Judge();
  ASSERT_EQ(named.size(), 1u);
  EXPECT_THAT(named.at("slow"), HasSubstr("not whole after 30s"));
}

TEST_F(ConnectionLedgerTest, OfAllTogetherStrangersGoFirstThenWhoHasTheMost) {
  for (const char* peer : {"a", "b", "c", "stranger"}) {
    const auto connection = Add(peer);
    if (peer != std::string("stranger")) connection->Known();
  }
  received_ = {{"a", 9 * kUnit}, {"b", 10 * kUnit}, {"c", 8 * kUnit}, {"stranger", 7 * kUnit}};
  auto named = Judge();
  ASSERT_EQ(named.size(), 1u);
  EXPECT_THAT(named.at("stranger"), HasSubstr("of all connections"));
  EXPECT_EQ(ledger_.untaken_bytes(), 27 * kUnit);
  Add("d")->Known();
  received_["d"] = 5 * kUnit;
  named = Judge();
  ASSERT_EQ(named.size(), 1u);
  EXPECT_EQ(named.count("b"), 1u);
}

TEST_F(ConnectionLedgerTest, WhoHasNextToNothingDoesNotGoForThoseWhoHaveMuch) {
  for (const char* peer : {"a", "b", "c", "d"}) {
    Add(peer)->Known();
    received_[peer] = 9 * kUnit;
  }
  Add("stranger");
  received_["stranger"] = limits_.slack_bytes;  // its first call is on the way
  const auto named = Judge();
  EXPECT_EQ(named.size(), 1u);
  EXPECT_EQ(named.count("stranger"), 0u);
}

TEST_F(ConnectionLedgerTest, WhoGivesCallsUpAsFastAsItBeginsThemGoes) {
  Add("a")->Known();
  streams_["a"] = limits_.streams;
  EXPECT_TRUE(Judge().empty());
  streams_["a"] = limits_.streams + 1;
  EXPECT_THAT(Judge().at("a"), HasSubstr("513 calls that are not over"));
}

// Of open calls that nobody took. 20 bytes began one at least, and each counts as 1,000.
class OpenCallsTest : public ConnectionLedgerTest {
 protected:
  OpenCallsTest() {
    limits_.open_calls = 10;
    limits_.least_call_bytes = 20;
    limits_.open_call_bytes = kUnit;
    ledger_.SetLimits(limits_);
  }
  // Who is named. gRPC is asked only where it must be, and whom it was asked of is in asked_.
  std::vector<std::string> LookAgain() {
    asked_.clear();
    const auto count = [this](const Connection& connection, bool exactly) {
      ConnectionLedger::Counted counted;
      counted.received = received_[connection.peer()];
      counted.unread = unread_[connection.peer()];
      if (!exactly && asked_anyway_.count(connection.peer()) == 0) return counted;
      asked_.push_back(connection.peer());
      counted.streams = streams_[connection.peer()];
      counted.given_up = 0;
      return counted;
    };
    std::vector<std::string> named;
    for (const auto& verdict : ledger_.Judge(now_, count)) {
      EXPECT_THAT(verdict.why, HasSubstr("unfinished messages and calls of all"));
      named.push_back(verdict.connection->peer());
      ledger_.Remove(verdict.connection, now_);
    }
    return named;
  }
  // With what it takes to begin them.
  std::shared_ptr<Connection> AddWithCalls(const std::string& peer, uint64_t calls) {
    received_[peer] = calls * limits_.least_call_bytes;
    streams_[peer] = calls;
    return Add(peer);
  }

  // Of calls that were handed to us, and asked about while they were.
  std::shared_ptr<Connection> AddWithOurCalls(const std::string& peer, uint64_t calls) {
    const auto connection = AddWithCalls(peer, calls);
    connection->Known();
    for (uint64_t i = 0; i < calls; ++i) connection->CallBegins();
    return connection;
  }
  // As of those from whom much came.
  void LookAndAskAbout(const std::set<std::string>& peers) {
    asked_anyway_ = peers;
    EXPECT_THAT(LookAgain(), ::testing::IsEmpty());
    asked_anyway_.clear();
  }
  void EndCalls(Connection* connection) {
    for (uint64_t& left = streams_[connection->peer()]; left > 0; --left) connection->CallEnds();
  }

  std::map<std::string, uint64_t> unread_;
  std::vector<std::string> asked_;
  std::set<std::string> asked_anyway_;
};

TEST_F(OpenCallsTest, CountForTheirConnectionThoughTheirCallerSaidNextToNothing) {
  const auto a = AddWithCalls("a", 9), b = AddWithCalls("b", 10), c = AddWithCalls("c", 10);
  EXPECT_THAT(LookAgain(), ::testing::IsEmpty());
  EXPECT_THAT(asked_, ::testing::IsEmpty()) << "all that they may have begun is not too much";
  EXPECT_EQ(ledger_.untaken_bytes(), 29 * kUnit + 580);
  const auto d = AddWithCalls("d", 10);
  EXPECT_EQ(LookAgain().size(), 1u);
  EXPECT_GE(asked_.size(), 1u);
  EXPECT_LE(ledger_.untaken_bytes(), limits_.all_bytes);
}

TEST_F(OpenCallsTest, WhoMayHaveBegunManyIsAskedAboutNotClosed) {
  std::vector<std::shared_ptr<Connection>> all;
  for (const char* peer : {"a", "b", "c", "d", "e", "f"}) {
    all.push_back(AddWithCalls(peer, 10));
    streams_[peer] = 1;  // the others are over
  }
  EXPECT_THAT(LookAgain(), ::testing::IsEmpty());
  EXPECT_FALSE(asked_.empty());
  EXPECT_THAT(LookAgain(), ::testing::IsEmpty());
  EXPECT_THAT(asked_, ::testing::IsEmpty()) << "nothing came since";
}

TEST_F(OpenCallsTest, WhatGrpcHasNotReadYetIsAsGoodAsBegunOfStrangersOnly) {
  std::vector<std::shared_ptr<Connection>> all;
  for (const char* peer : {"a", "b", "c", "d"}) {
    all.push_back(AddWithCalls(peer, 10));
    streams_[peer] = 0;
    unread_[peer] = received_[peer];
    all.back()->Known();
  }
  EXPECT_THAT(LookAgain(), ::testing::IsEmpty());
  for (const char* peer : {"e", "f", "g", "h"}) {
    all.push_back(AddWithCalls(peer, 10));
    streams_[peer] = 0;
    unread_[peer] = received_[peer];
  }
  const auto named = LookAgain();
  EXPECT_EQ(named.size(), 2u);
  EXPECT_THAT(named, ::testing::Each(::testing::Ge("e")));
}

TEST_F(OpenCallsTest, ThoseThatWereHandedToUsDoNotCount) {
  std::vector<std::shared_ptr<Connection>> all;
  for (const char* peer : {"a", "b", "c", "d"}) {
    all.push_back(AddWithCalls(peer, 10));
    for (int i = 0; i < 10; ++i) all.back()->CallBegins();
  }
  EXPECT_THAT(LookAgain(), ::testing::IsEmpty());
}

// A call of ours may end without a byte from its caller: what gRPC said before is no longer so.
TEST_F(OpenCallsTest, ThoseThatAreOverCloseNobodyThoughNothingCameSince) {
  std::vector<std::shared_ptr<Connection>> all;
  for (const char* peer : {"a", "b", "c", "d", "e"}) all.push_back(AddWithOurCalls(peer, 10));
  LookAndAskAbout({"a", "b", "c", "d", "e"});
  for (const auto& connection : all) EndCalls(connection.get());
  for (int i = 0; i < 3; ++i) EXPECT_THAT(LookAgain(), ::testing::IsEmpty());
  EXPECT_LE(ledger_.untaken_bytes(), limits_.all_bytes);
}

// "guessed" may hold enough that without it all would be well, and holds most of that.
TEST_F(OpenCallsTest, NobodyGoesForThemWhoWasNotAskedAboutNow) {
  const auto over = AddWithOurCalls("over", 10);
  LookAndAskAbout({"over"});
  EndCalls(over.get());
  const auto b = AddWithCalls("b", 9), c = AddWithCalls("c", 9);
  for (const auto& connection : {b, c}) connection->Known();
  LookAndAskAbout({"b", "c"});
  const auto guessed = AddWithCalls("guessed", 10);
  guessed->Known();
  streams_["guessed"] = 8;
  EXPECT_THAT(LookAgain(), ::testing::IsEmpty());
  EXPECT_THAT(asked_, ::testing::Contains("over"));
}

TEST_F(ConnectionLedgerTest, MoreThanCameIsNoCreditForLater) {
  const auto a = Add("a");
  received_["a"] = kUnit;
  a->Taken(100 * kUnit);
  EXPECT_TRUE(Judge().empty());
  received_["a"] += 11 * kUnit;
  EXPECT_EQ(Judge().size(), 1u);
}

TEST_F(ConnectionLedgerTest, FramesThatAreNoMessageDoNotAddUp) {
  limits_.second_bytes = 10;
  ledger_.SetLimits(limits_);
  Add("a");
  for (int i = 0; i < 10000; ++i) {
    received_["a"] += 10;  // a ping
    now_ += absl::Seconds(1);
    ASSERT_TRUE(Judge().empty());
  }
  for (int i = 0; i < 10000; ++i) {  // window updates, of an answer that goes on
    sent_["a"] += limits_.sent_share * 26 + 5;
    received_["a"] += 26;
    ASSERT_TRUE(Judge().empty());
  }
  EXPECT_LT(ledger_.untaken_bytes(), kUnit);
}

TEST_F(ConnectionLedgerTest, StrangersMakeRoomThenWhoIsIdleAndNobodyElse) {
  const auto known = Add("known");
  known->Known();
  now_ += absl::Seconds(1);
  Add("old stranger");
  now_ += absl::Seconds(1);
  Add("young stranger");
  const auto newcomer = Add("newcomer");
  EXPECT_EQ(ledger_.WhoMakesRoom(*newcomer, now_)->peer(), "old stranger");
  EXPECT_EQ(ledger_.WhoMakesRoom(*newcomer, now_)->peer(), "young stranger") << "each goes once";
  EXPECT_EQ(ledger_.WhoMakesRoom(*newcomer, now_), nullptr);
  now_ += limits_.idle_time;
  known->CallBegins();
  EXPECT_EQ(ledger_.WhoMakesRoom(*newcomer, now_), nullptr);
  known->CallEnds();
  EXPECT_EQ(ledger_.WhoMakesRoom(*newcomer, now_)->peer(), "known");
}

TEST_F(ConnectionLedgerTest, APortThatIsUsedAgainIsAnotherConnection) {
  const auto first = Add("a");
  const auto second = Add("a");
  ledger_.Remove(first, now_);
  EXPECT_EQ(ledger_.Find("a"), second);
}

TEST(CallGateConnections, ACallSaysWhatItWasGiven) {
  CallGate gate;
  const auto connection = gate.connections().Add("a", 0, absl::Now());
  const auto counted = [](const Connection&, bool) {
    return ConnectionLedger::Counted{1000000, 0, 0, 0};
  };
  gate.connections().Judge(absl::Now(), counted);
  const uint64_t held = gate.connections().untaken_bytes();
  auto call = gate.Enter("Fetch");
  call->CameFrom("a", 900000);
  call->Took(90000);
  gate.connections().Judge(absl::Now(), counted);
  EXPECT_LE(gate.connections().untaken_bytes(), held - 990000);
  auto elsewhere = gate.Enter("Fetch");
  elsewhere->CameFrom("unix:", 900000);
  elsewhere->Took(1);
  elsewhere->Known();
}

}  // namespace
}  // namespace hearth
