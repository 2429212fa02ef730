#include "services/serving/door/given_up_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "services/serving/door/connection_ledger.h"
#include "services/serving/door/peer_name.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GivenUpCallsTest : public testing::Test {
 protected:
  GivenUpCallsTest() {
    limits_.of_host = 100;
    limits_.of_all = 150;
    limits_.of_watched = 10;
    limits_.of_host_watched_on = 25;
    calls_.SetLimits(limits_);
  }
  std::vector<size_t> Named(const std::vector<GivenUpCalls::Caller>& callers) {
    std::vector<size_t> named;
    for (const auto& [at, why] : calls_.Judge(callers, now_)) named.push_back(at);
    return named;
  }
  GivenUpCalls::Caller Caller(const std::string& host, double recent, bool is_known = true) {
    return {host, recent, is_known, now_};
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  GivenUpLimits limits_;
  GivenUpCalls calls_;
};

TEST_F(GivenUpCallsTest, ATallyIsOfTheLastSecond) {
  GivenUpCalls::Tally tally(now_);
  uint64_t total = 0;
  for (int i = 0; i < 1000; ++i) {
    total += 2;
    now_ += absl::Milliseconds(20);
    tally.Add(total, now_);
  }
  EXPECT_NEAR(tally.recent(now_), 100, 2);  // a second
  tally.Add(total + 5, now_);
  EXPECT_NEAR(tally.recent(now_), 105, 2) << "at once";
  now_ += absl::Seconds(10);
  EXPECT_LT(tally.recent(now_), 0.01) << "though nobody asked";
  tally.Add(total + 5, now_);
  now_ += absl::Seconds(100);
  tally.Add(total + 5 + 1000, now_);
  EXPECT_NEAR(tally.recent(now_), 10, 1) << "evenly";
}

TEST_F(GivenUpCallsTest, AFirstCountIsOfAllTheTimeSinceTheConnectionBegan) {
  GivenUpCalls::Tally even(now_), by_bytes(now_), at_last(now_);
  at_last.Came(50, now_);
  for (int i = 0; i < 150; ++i) {
    now_ += absl::Seconds(1);
    by_bytes.Came(30, now_);
    at_last.Came(0, now_);
  }
  at_last.Came(4500, now_ += absl::Milliseconds(20));
  for (auto* each : {&even, &by_bytes, &at_last}) each->Add(150, now_);
  EXPECT_NEAR(even.recent(now_), 1, 0.1);
  EXPECT_NEAR(by_bytes.recent(now_), 1, 0.1);
  EXPECT_GT(at_last.recent(now_), 100) << "quiet until now";
}

TEST_F(GivenUpCallsTest, WhoCancelsNowAndThenGoesOn) {
  EXPECT_THAT(Named({Caller("a", 60), Caller("a", 40), Caller("b", 50)}), IsEmpty());
  EXPECT_TRUE(calls_.LetsIn("a", now_));
  EXPECT_TRUE(calls_.LetsIn("a", now_));
}

TEST_F(GivenUpCallsTest, OfAHostTheWorstGoUntilTheRestIsBelow) {
  EXPECT_THAT(Named({Caller("a", 30), Caller("a", 95), Caller("a", 20), Caller("b", 40)}),
              ElementsAre(1));
}

TEST_F(GivenUpCallsTest, StrangersGoFirst) {
  EXPECT_THAT(Named({Caller("a", 60), Caller("a", 50, false), Caller("a", 5, false)}),
              ElementsAre(1));
}

TEST_F(GivenUpCallsTest, ManyHostsTogetherAreBoundedToo) {
  EXPECT_THAT(Named({Caller("a", 60), Caller("b", 80), Caller("c", 50)}), ElementsAre(1));
}

TEST_F(GivenUpCallsTest, NewConnectionsOfAHostThatWasOverComeOneByOneAndAreWatched) {
  const auto honest = Caller("a", 20);
  now_ += absl::Seconds(1);
  EXPECT_THAT(calls_.Judge({honest, Caller("a", 95)}, now_),
              ElementsAre(testing::Pair(1, HasSubstr("it gave up 95 calls"))));
  EXPECT_TRUE(calls_.Watches("a", now_));
  EXPECT_FALSE(calls_.LetsIn("a", now_));
  EXPECT_TRUE(calls_.LetsIn("b", now_));
  now_ += limits_.pause;
  EXPECT_TRUE(calls_.LetsIn("a", now_));
  EXPECT_FALSE(calls_.LetsIn("a", now_)) << "the turn is taken";
  // Closed for less than who was there before; that one is left alone.
  const auto again = Caller("a", 11);
  EXPECT_THAT(Named({honest, again, Caller("a", 9)}), ElementsAre(1));
  now_ += 2 * limits_.pause - absl::Milliseconds(1);
  EXPECT_FALSE(calls_.LetsIn("a", now_)) << "a longer pause";
  now_ += absl::Milliseconds(1);
  EXPECT_TRUE(calls_.LetsIn("a", now_));
  now_ += limits_.memory + absl::Milliseconds(1);
  EXPECT_FALSE(calls_.Watches("a", now_));
  EXPECT_TRUE(calls_.LetsIn("a", now_));
  EXPECT_TRUE(calls_.LetsIn("a", now_));
  EXPECT_THAT(Named({honest, again}), IsEmpty());
}

TEST_F(GivenUpCallsTest, ThePauseIsBounded) {
  for (int i = 0; i < 20; ++i) {
    calls_.NoteOverLimit("a", now_);
    now_ += limits_.longest_pause;
  }
  EXPECT_TRUE(calls_.LetsIn("a", now_));
}

TEST_F(GivenUpCallsTest, WhoLeavesBeforeItIsOverIsStillItsHost) {
  calls_.NoteEnd("a", 60, now_);
  EXPECT_THAT(Named({Caller("a", 35)}), IsEmpty());
  EXPECT_TRUE(calls_.LetsIn("a", now_));
  calls_.NoteEnd("a", 35, now_);
  EXPECT_THAT(Named({Caller("a", 9)}), IsEmpty()) << "nobody goes for what others did";
  EXPECT_FALSE(calls_.LetsIn("a", now_));
}

TEST_F(GivenUpCallsTest, AHostWithLittleLoadIsNotWatchedForGood) {
  calls_.NoteOverLimit("a", now_);
  const absl::Time end = now_ + limits_.memory;
  while (now_ < end) {
    now_ += absl::Seconds(1);
    EXPECT_THAT(Named({Caller("a", 12)}), ElementsAre(0));
  }
  now_ += absl::Milliseconds(1);
  EXPECT_FALSE(calls_.Watches("a", now_));
}

TEST_F(GivenUpCallsTest, AHostThatGoesOnIsWatchedOn) {
  calls_.NoteOverLimit("a", now_);
  for (int i = 0; i < 40; ++i) {
    now_ += absl::Seconds(1);
    calls_.NoteEnd("a", 15, now_);  // those that were closed count too
    EXPECT_THAT(Named({Caller("a", 12)}), ElementsAre(0));
  }
  EXPECT_TRUE(calls_.Watches("a", now_));
}

TEST_F(GivenUpCallsTest, WhoGoesForOthersHostsToBeBelowIsNotWatched) {
  EXPECT_THAT(Named({Caller("a", 60), Caller("b", 80), Caller("c", 50)}), ElementsAre(1));
  EXPECT_FALSE(calls_.Watches("b", now_));
}

TEST_F(GivenUpCallsTest, OnlySoManyHostsAreRemembered) {
  limits_.hosts = 2;
  calls_.SetLimits(limits_);
  for (const char* host : {"a", "b", "c"}) calls_.NoteOverLimit(host, now_);
  EXPECT_FALSE(calls_.LetsIn("b", now_));
  EXPECT_TRUE(calls_.LetsIn("c", now_));
  now_ += limits_.memory + absl::Milliseconds(1);
  calls_.NoteOverLimit("c", now_);
  EXPECT_FALSE(calls_.LetsIn("c", now_));
}

TEST(GivenUpCallsInTheLedger, TheConnectionGoesAndItsHostWaits) {
  ConnectionLedger ledger;
  ConnectionLimits limits;
  ledger.SetLimits(limits);
  absl::Time now = absl::FromUnixSeconds(1000);
  const auto bad = ledger.Add("ipv4:10.0.0.1:1", 0, now);
  const auto beside = ledger.Add("ipv4:10.0.0.1:2", 0, now);
  const auto other = ledger.Add("ipv6:%5B::1%5D:1", 0, now);
  for (const auto& each : {bad, beside, other}) each->Known();
  const std::map<std::string, uint64_t> given_up = {{bad->peer(), 2500}, {beside->peer(), 256}};
  const auto counted = [&](const Connection& connection, bool) {
    const auto it = given_up.find(connection.peer());
    return ConnectionLedger::Counted{0, 0, 0, it == given_up.end() ? 0 : it->second};
  };
  const auto verdicts = ledger.Judge(now, counted);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].connection, bad);
  EXPECT_THAT(verdicts[0].why, HasSubstr("it gave up 2500 calls within a second"));
  EXPECT_FALSE(ledger.LetsIn("ipv4:10.0.0.1:3", now));
  EXPECT_TRUE(ledger.Watches("ipv4:10.0.0.1:3", now));
  EXPECT_TRUE(ledger.LetsIn("ipv4:10.0.0.2:3", now));
  EXPECT_TRUE(ledger.LetsIn("ipv6:%5B::1%5D:2", now));
}

TEST(HostOfPeer, IsAnAddressOrANetworkOfOneSubscriber) {
  EXPECT_EQ(HostOfPeer("ipv4:10.0.0.1:4711"), "ipv4:10.0.0.1");
  EXPECT_EQ(HostOfPeer("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4711"), "ipv6:%5B2001:db8:1:2::%5D/64");
  EXPECT_EQ(HostOfPeer("ipv6:%5B2001:db8:1:2::1%5D:1"), HostOfPeer("ipv6:%5B2001:db8:1:2::2%5D:2"));
  EXPECT_NE(HostOfPeer("ipv6:%5B2001:db8:1:2::1%5D:1"), HostOfPeer("ipv6:%5B2001:db8:1:3::1%5D:1"));
  EXPECT_EQ(HostOfPeer("ipv6:%5B::1%5D:1"), "ipv6:%5B::%5D/64");
  EXPECT_EQ(HostOfPeer("ipv6:%5Bno address%5D:1"), "ipv6:%5Bno address%5D");
  EXPECT_EQ(HostOfPeer("a"), "a");
}

TEST(GivenUpCallsInTheLedger, WhoLeavesBeforeAnybodyAskedCountsByWhatItSaid) {
  ConnectionLedger ledger;
  absl::Time now = absl::FromUnixSeconds(1000);
  const auto unasked = [](uint64_t bytes) {
    return [bytes](const Connection&, bool) {
      ConnectionLedger::Counted counted;
      counted.received = bytes;
      return counted;
    };
  };
  const auto reconnect = [&](uint64_t bytes, bool is_taken) {
    const auto connection = ledger.Add("ipv4:10.0.0.1:1", 0, now);
    if (is_taken) connection->Taken(bytes);
    ledger.Remove(connection, now, bytes);
    now += absl::Milliseconds(20);
    ledger.Judge(now, unasked(0));
  };
  for (int i = 0; i < 100; ++i) reconnect(4096, false);
  EXPECT_FALSE(ledger.Watches("ipv4:10.0.0.1:2", now)) << "a hello";
  for (int i = 0; i < 100; ++i) reconnect(1 << 20, true);
  EXPECT_FALSE(ledger.Watches("ipv4:10.0.0.1:2", now)) << "messages that calls took";
  for (int i = 0; i < 3; ++i) reconnect(1 << 20, false);
  EXPECT_FALSE(ledger.Watches("ipv4:10.0.0.1:2", now)) << "some that died while they sent";
  now += absl::Seconds(10);
  for (int i = 0; i < 50; ++i) reconnect(16384, false);
  EXPECT_TRUE(ledger.Watches("ipv4:10.0.0.1:2", now));
}

TEST(GivenUpCallsInTheLedger, WhatAQuietConnectionHadIsOver) {
  ConnectionLedger ledger;
  absl::Time now = absl::FromUnixSeconds(1000);
  std::map<std::string, uint64_t> asked;
  const auto counted = [&](const Connection& connection, bool) {
    ConnectionLedger::Counted counts;
    const auto it = asked.find(connection.peer());
    if (it != asked.end()) counts.given_up = it->second;
    return counts;
  };
  const auto quiet = ledger.Add("ipv4:10.0.0.1:1", 0, now);
  asked[quiet->peer()] = 1900;
  EXPECT_THAT(ledger.Judge(now, counted), IsEmpty());
  asked.clear();  // too little came since to ask
  now += absl::Seconds(10);
  EXPECT_THAT(ledger.Judge(now, counted), IsEmpty());
  asked[ledger.Add("ipv4:10.0.0.1:2", 0, now)->peer()] = 1900;
  EXPECT_THAT(ledger.Judge(now, counted), IsEmpty());
  ledger.Remove(quiet, now);
  EXPECT_THAT(ledger.Judge(now, counted), IsEmpty());
  EXPECT_FALSE(ledger.Watches("ipv4:10.0.0.1:3", now));
}

}  // namespace
}  // namespace hearth
