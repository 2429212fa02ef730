#include "services/serving/calls/limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/fake_clock.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

Identity Tenant(const std::string& name) { return Identity{name, Role::kTenant, name, ""}; }
Identity Worker() { return Identity{"worker", Role::kWorker, kDefaultTenant, ""}; }

class LimitTest : public testing::Test {
 protected:
  struct Stream {
    std::unique_ptr<Limit::Place> place;
    absl::Status ended;
  };

  static Limit::Options Small() {
    Limit::Options options;
    options.kind = "publish";
    options.all = 4;
    options.each_tenant = 2;
    options.window = absl::Seconds(60);
    options.floor_bytes = 1000;
    return options;
  }
  // Null when it was refused: refusal_ says why.
  std::shared_ptr<Stream> Enter(const Identity& caller) {
    auto stream = std::make_shared<Stream>();
    auto place = places_.Enter(caller, [raw = stream.get()](const absl::Status& why) {
      EXPECT_TRUE(raw->ended.ok()) << "once";
      raw->ended = why;
    });
    refusal_ = place.status();
    if (!place.ok()) return nullptr;
    stream->place = *std::move(place);
    return stream;
  }
  // Time passes, and these move so many bytes in it.
  void Pass(absl::Duration time,
            const std::vector<std::pair<std::shared_ptr<Stream>, uint64_t>>& moved = {}) {
    for (const auto& [stream, bytes] : moved) stream->place->Moved(bytes);
    clock_.Advance(time);
  }

  FakeClock clock_;
  Limit places_{Small(), &clock_};
  absl::Status refusal_;
};

TEST_F(LimitTest, AByteNowAndThenIsBelowTheFloor) {
  const auto trickles = Enter(Identity());
  const auto steady = Enter(Identity());
  for (int i = 0; i < 5; ++i) {
    Pass(absl::Seconds(50), {{trickles, 1}, {steady, 2000}});
    places_.EndSlow();
  }
  EXPECT_EQ(trickles->ended.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(trickles->ended.message()), HasSubstr("moved 2 bytes in 1m40s"));
  EXPECT_TRUE(steady->ended.ok());
  EXPECT_EQ(places_.open(), 1);
}

TEST_F(LimitTest, WhatTheServerTakesItsTimeForIsNotTheCallers) {
  const auto commits = Enter(Identity());
  commits->place->WaitsForCaller(false);
  for (int i = 0; i < 10; ++i) {
    Pass(absl::Seconds(50));
    places_.EndSlow();
  }
  commits->place->WaitsForCaller(true);
  Pass(absl::Seconds(59));
  places_.EndSlow();
  EXPECT_TRUE(commits->ended.ok());
  Pass(absl::Seconds(1));
  places_.EndSlow();
  EXPECT_FALSE(commits->ended.ok());
}

TEST_F(LimitTest, ANewStreamNeverEndsOneThatHasBegun) {
  const auto b = Enter(Tenant("b")), slow = Enter(Tenant("a")), slower = Enter(Tenant("a"));
  const auto worker = Enter(Worker());
  Pass(absl::Seconds(59), {{slow, 10}});
  EXPECT_EQ(Enter(Tenant("a")), nullptr) << "its own are full";
  EXPECT_THAT(std::string(refusal_.message()), HasSubstr("2 streams of tenant \"a\" are open"));
  EXPECT_EQ(Enter(Tenant("c")), nullptr) << "all are full";
  EXPECT_THAT(std::string(refusal_.message()), HasSubstr("publish: 4 streams are open"));
  places_.EndSlow();
  for (const auto& stream : {b, slow, slower, worker}) EXPECT_TRUE(stream->ended.ok());
  EXPECT_EQ(places_.open(), 4);
}

TEST_F(LimitTest, TheLastStreamIsForATenantThatHasNone) {
  const auto b = Enter(Tenant("b")), first = Enter(Tenant("a")), second = Enter(Tenant("a"));
  EXPECT_EQ(Enter(Tenant("b")), nullptr);
  EXPECT_THAT(std::string(refusal_.message()), HasSubstr("3 streams are open"));
  EXPECT_NE(Enter(Tenant("c")), nullptr) << refusal_;
}

TEST_F(LimitTest, ThroughWorkersATenantHasThreeQuarters) {
  std::vector<std::shared_ptr<Stream>> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(Enter(Worker()));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(streams[i]->place->BelongsTo("a").ok());
  const absl::Status refused = streams[3]->place->BelongsTo("a");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("3 streams of tenant \"a\" are open"));
  EXPECT_TRUE(streams[3]->place->BelongsTo("b").ok());
  // Where nobody is asked who they are, all are one.
  streams.clear();
  for (int i = 0; i < 4; ++i) streams.push_back(Enter(Identity()));
  for (const auto& stream : streams) EXPECT_TRUE(stream->place->BelongsTo("default").ok());
}

TEST(Limit, TheLastPlaceIsForATenantThatHasNone) {
  Limit limit({"state", 4, 2});
  const auto caller = [](const char* tenant) {
    Identity identity;
    identity.tenant = tenant;
    identity.role = Role::kTenant;
    return identity;
  };
  const auto a = limit.Enter(caller("a")), more = limit.Enter(caller("a"));
  const auto b = limit.Enter(caller("b"));
  EXPECT_FALSE(limit.Enter(caller("b")).ok());
  EXPECT_TRUE(limit.Enter(caller("c")).ok());
  EXPECT_TRUE(limit.Enter(Identity()).ok()) << "one who is asked for no identity is no tenant";
}

TEST(Limit, WhatHoldsMoreTakesMorePlaces) {
  Limit limit({"lease", 10, 4});
  Identity tenant;
  tenant.tenant = "a";
  tenant.role = Role::kTenant;
  auto large = limit.Enter(tenant, nullptr, 3);
  ASSERT_TRUE(large.ok());
  EXPECT_FALSE(limit.Enter(tenant, nullptr, 2).ok());
  EXPECT_TRUE(limit.Enter(tenant).ok());
  EXPECT_FALSE(limit.Enter(Identity(), nullptr, 8).ok());
  EXPECT_TRUE(limit.Enter(Identity(), nullptr, 7).ok());
  large->reset();
  EXPECT_TRUE(limit.Enter(tenant, nullptr, 4).ok());
  EXPECT_TRUE(limit.Enter(Identity(), nullptr, 10).ok()) << "all was given back";
}

}  // namespace
}  // namespace hearth
