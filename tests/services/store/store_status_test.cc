#include "services/store/store_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/services/store/store_server.h"
#include "tests/support/fake_clock.h"
#include "tests/support/store_kit.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class StoreStatusTest : public ::testing::Test {
 protected:
  void Publish(uint64_t seed, const std::string& tenant = "default") {
    const KitPrompt prompt{KitTokens(seed, 33), {}, tenant};
    ASSERT_TRUE(KitPublish(store_.get(), model_, prompt, {32}).ok());
  }
  uint32_t Fetch(uint64_t seed) {
    return KitFetch(store_.get(), model_, {KitTokens(seed, 33), {}}).value();
  }
  nlohmann::json Json() {
    clock_.Advance(absl::Seconds(1));
    return nlohmann::json::parse(status_.JsonText());
  }

  const Fingerprint model_ = KitModel().Make();
  const std::unique_ptr<TieredStore> store_ =
      TieredStore::Open(StoreServer::SmallStore("")).value();
  FakeClock clock_;
  FleetTable fleet_{&clock_};
  StatusFigures status_{"hearth-store", "1.2.3", StoreFigures(store_.get(), &fleet_), &clock_};
};

TEST_F(StoreStatusTest, EmptyStoreHasEveryField) {
  const nlohmann::json json = Json();
  EXPECT_EQ(json["program"], "hearth-store");
  EXPECT_EQ(json["version"], "1.2.3");
  EXPECT_EQ(json["uptime_s"], 1);
  EXPECT_EQ(json["tiers"].size(), 1u);
  EXPECT_EQ(json["lookups"]["fetches"], 0);
  EXPECT_TRUE(json["hottest"].is_array() && json["hottest"].empty());
  EXPECT_EQ(json["removed"].size(), kRemovals);
  EXPECT_EQ(json["misses"].size(), 4u);
}

TEST_F(StoreStatusTest, HottestPointsHideContent) {
  for (uint64_t seed = 1; seed <= kHottest + 5; ++seed) Publish(seed, "acme & <sons>");
  Publish(100);
  Publish(101);
  for (const uint64_t seed : {101, 100, 101}) EXPECT_EQ(Fetch(seed), 32u);
  const nlohmann::json json = Json();
  const auto& hottest = json["hottest"];
  ASSERT_EQ(hottest.size(), kHottest);
  EXPECT_EQ(hottest[0]["hits"], 2);
  EXPECT_EQ(hottest[1]["hits"], 1);
  EXPECT_EQ(hottest[2]["hits"], 0);
  EXPECT_EQ(hottest[0]["tokens"], 32);
  EXPECT_EQ(hottest[0]["tier"], "host");
  EXPECT_EQ(hottest[0]["id"].get<std::string>().size(), 64u);
  EXPECT_FALSE(hottest[0].contains("tenant") || hottest[0].contains("last_token_ids"));
  EXPECT_THAT(json.dump(), Not(HasSubstr("acme")));
}

TEST_F(StoreStatusTest, EachStepCountsItsEvents) {
  Publish(1);
  Fetch(1);
  Fetch(9);
  status_.Sample();
  status_.Sample();
  Fetch(1);
  status_.Sample();
  const nlohmann::json steps = Json()["steps"];
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0]["fetches"], 2);
  EXPECT_EQ(steps[0]["hits"], 1);
  EXPECT_EQ(steps[0]["lookup_tokens"], 66);
  EXPECT_EQ(steps[0]["hit_tokens"], 32);
  EXPECT_EQ(steps[1]["fetches"], 0);
  EXPECT_EQ(steps[2]["hit_tokens"], 32);
}

TEST_F(StoreStatusTest, CurrentStepIsShown) {
  Publish(1);
  Fetch(1);
  const nlohmann::json first = Json();
  EXPECT_EQ(first["steps"].size(), 0u);
  EXPECT_EQ(first["step_now"]["fetches"], first["lookups"]["fetches"]);
  EXPECT_EQ(first["step_now"]["hit_tokens"], 32);
  status_.Sample();
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(Json()["step_now"]["fetches"], 0);
}

TEST_F(StoreStatusTest, OldestStepsAreDropped) {
  for (size_t i = 0; i < StatusFigures::kSteps + 7; ++i) status_.Sample();
  EXPECT_EQ(Json()["steps"].size(), StatusFigures::kSteps);
}

TEST_F(StoreStatusTest, JsonIsCachedForOneSecond) {
  clock_.Advance(absl::Seconds(10));
  const std::string before = status_.JsonText();
  Publish(1);
  EXPECT_EQ(status_.JsonText(), before);
  clock_.Advance(absl::Seconds(1));
  EXPECT_NE(status_.JsonText(), before);
}

TEST_F(StoreStatusTest, DestructionStopsSampler) {
  StatusFigures running("hearth-store", "1", StoreFigures(store_.get(), &fleet_), &clock_);
  running.Start();
}

TEST(Quantile, InterpolatesWithinBuckets) {
  LatencyCounts counts;
  EXPECT_EQ(Quantile(counts, 0.5), 0);
  counts.counts[3] = 90;  // the bucket of 50 to 100 microseconds
  counts.counts[6] = 10;  // the bucket of 0.5 to 1 millisecond
  EXPECT_NEAR(Quantile(counts, 0.45), 75e-6, 1e-9);
  EXPECT_NEAR(Quantile(counts, 0.95), 750e-6, 1e-9);
  counts.counts.back() = 1000;
  EXPECT_EQ(Quantile(counts, 0.99), kLatencyBoundsS.back());
}

}  // namespace
}  // namespace hearth
