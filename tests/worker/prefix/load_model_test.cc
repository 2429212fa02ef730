// Load or compute: measured speeds, decisions, and the cost of a wrong decision.

#include "worker/prefix/load_model.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace hearth {
namespace {

constexpr double kMegabyte = 1e6;

class LoadModelTest : public testing::Test {
 protected:
  void Pass(double seconds) { now_ += absl::Seconds(seconds); }
  // Makes the model learn that computing 2,048 tokens takes 2 s.
  void LearnCompute() {
    for (int i = 0; i < 20; ++i) model_.OnStep(512, absl::Milliseconds(500));
  }
  void LearnLink(double megabytes_per_second, LoadSource source = LoadSource::kWire) {
    for (int i = 0; i < 5; ++i) {
      LoadReport load = Offer(megabytes_per_second);
      load.source = source;
      load.took = absl::Seconds(1);
      model_.OnFetch(load);
    }
  }
  static LoadReport Offer(double megabytes = 28, uint32_t boundary = 2048) {
    LoadReport offer;
    offer.decision = LoadDecision::kLoad;
    offer.source = LoadSource::kWire;
    offer.boundary = boundary;
    offer.bytes = static_cast<uint64_t>(megabytes * kMegabyte);
    return offer;
  }
  static LoadWork Prompt(uint32_t have = 0, uint32_t tokens = 2112) { return {have, tokens, 0}; }
  LoadReport Decided(LoadReport load, const LoadWork& work = Prompt()) {
    model_.Decide(work, &load);
    return load;
  }
  bool Loads(const LoadReport& offer, const LoadWork& work = Prompt()) {
    return Decided(offer, work).decision == LoadDecision::kLoad;
  }
  // Returns whether the store would be asked for the whole prompt.
  bool Asks() {
    LoadReport best = Offer();
    best.source = std::nullopt;
    return Loads(best);
  }
  // Simulates a transfer of 28 MB at this speed, within its limits. Passes the returned report to
  // the model.
  LoadReport Transfer(double megabytes_per_second) {
    LoadReport load = Decided(Offer());
    EXPECT_EQ(load.decision, LoadDecision::kLoad);
    const absl::Duration needs = absl::Seconds(28 / megabytes_per_second);
    const absl::Duration message = absl::Seconds(0.256 / megabytes_per_second);
    load.took = needs;
    if (load.limits.has_value()) load.took = std::min(needs, load.limits->transfer);
    if (load.limits.has_value() && message > load.limits->message) load.took = load.limits->message;
    load.is_late = load.took < needs;
    load.received =
        static_cast<uint64_t>(absl::ToDoubleSeconds(load.took) * megabytes_per_second * kMegabyte);
    if (load.is_late) load.decision = LoadDecision::kAbandoned;
    now_ += load.took;
    model_.OnFetch(load);
    return load;
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  LoadModel model_{LoadChoice::kAuto, [this] { return now_; }};
};

TEST_F(LoadModelTest, UnknownSpeedsMeanLoading) {
  EXPECT_TRUE(Loads(Offer()));
  EXPECT_FALSE(Decided(Offer()).limits.has_value());
  LearnCompute();
  EXPECT_TRUE(Loads(Offer())) << "the link's speed is unknown";
  EXPECT_LE(Decided(Offer()).limits->transfer, absl::Milliseconds(2010));
}

TEST_F(LoadModelTest, FasterOfLoadAndComputeWins) {
  LearnCompute();
  for (const double megabytes_per_second : {0.2, 1.0, 5.0, 10.0, 20.0, 50.0, 500.0}) {
    LearnLink(megabytes_per_second);
    LearnLink(megabytes_per_second);
    for (const uint32_t boundary : {128u, 512u, 2048u}) {
      const double megabytes = 28.0 * boundary / 2048;
      const bool faster = megabytes / megabytes_per_second < 2.0 * boundary / 2048;
      EXPECT_EQ(Loads(Offer(megabytes, boundary)), faster)
          << boundary << " at " << megabytes_per_second;
    }
  }
}

TEST_F(LoadModelTest, ShortLoadIsAlwaysMade) {
  for (int i = 0; i < 20; ++i) model_.OnStep(512, absl::Milliseconds(1));
  LearnLink(100);
  EXPECT_TRUE(Loads(Offer(0.5, 128)));
}

TEST_F(LoadModelTest, TokensAlreadyHeldReduceSavings) {
  LearnCompute();
  LearnLink(20);  // 28 MB in 1.4 s
  EXPECT_TRUE(Loads(Offer(), Prompt(0)));
  EXPECT_FALSE(Loads(Offer(), Prompt(1536))) << "the load saves only half a second of computing";
}

TEST_F(LoadModelTest, ConcurrentPromptsFavorLoading) {
  LearnCompute();
  LearnLink(10);  // 28 MB in 2.8 s
  EXPECT_FALSE(Loads(Offer()));
  LoadWork busy = Prompt();
  busy.others = 1;
  EXPECT_TRUE(Loads(Offer(), busy)) << "with another prompt, computing takes 4 s";
}

TEST_F(LoadModelTest, SlowerLoadSkipsTheStore) {
  LearnCompute();
  LearnLink(1);
  LoadReport plan;
  plan.plan_took = absl::ZeroDuration();
  model_.OnFetch(plan);
  EXPECT_FALSE(Asks());
  LearnLink(500, LoadSource::kShared);
  EXPECT_TRUE(Asks()) << "shared memory may be fast enough";
}

TEST_F(LoadModelTest, SilentTransferIsAbandonedEarly) {
  LearnCompute();
  LearnLink(100);
  const LoadReport load = Transfer(0.2);
  EXPECT_EQ(load.decision, LoadDecision::kAbandoned);
  EXPECT_LE(load.took, absl::Milliseconds(101));
  EXPECT_FALSE(Loads(Offer())) << "the slow transfer must be learned at once";
}

TEST_F(LoadModelTest, SlowTransferMayTakeTwiceEstimate) {
  LearnCompute();
  LearnLink(100);
  EXPECT_EQ(Transfer(51).decision, LoadDecision::kLoad);
  LearnLink(100);
  const LoadReport slower = Transfer(20);
  EXPECT_EQ(slower.decision, LoadDecision::kAbandoned);
  EXPECT_NEAR(absl::ToDoubleSeconds(slower.took), 0.56, 0.05);
  EXPECT_TRUE(Loads(Offer())) << "at 20 MB/s it is still faster than computing";
}

TEST_F(LoadModelTest, ComputeTimeBoundsTransfer) {
  LearnCompute();
  LearnLink(15);  // 28 MB in 1.9 s
  EXPECT_LE(Decided(Offer()).limits->transfer, absl::Milliseconds(2010));
}

TEST_F(LoadModelTest, LimitsAreAtLeastFiftyMilliseconds) {
  for (int i = 0; i < 20; ++i) model_.OnStep(512, absl::Milliseconds(1));
  const LoadReport load = Decided(Offer(0.1, 16));
  EXPECT_GE(load.limits->transfer, absl::Milliseconds(50));
  EXPECT_GE(load.limits->message, absl::Milliseconds(50));
}

TEST_F(LoadModelTest, SlowerComputingIsSoonLearned) {
  for (int i = 0; i < 100; ++i) model_.OnStep(512, absl::Milliseconds(500));
  for (int i = 0; i < 40; ++i) model_.OnStep(512, absl::Milliseconds(1500));
  EXPECT_GT(*Decided(Offer(1, 512)).compute_estimate, absl::Milliseconds(1350));
}

TEST_F(LoadModelTest, SlowLinkIsRetriedPeriodically) {
  LearnCompute();
  LearnLink(1);
  int tried = 0;
  for (int second = 0; second < 300; ++second, Pass(1)) {
    if (!Asks()) continue;
    LoadReport load = Decided(Offer());
    if (load.decision == LoadDecision::kCompute) continue;
    ++tried;
    EXPECT_TRUE(load.retries);
    load.took = absl::Milliseconds(100);
    load.is_late = true;
    load.received = 100 * 1000;
    load.plan_took = absl::ZeroDuration();
    model_.OnFetch(load);
  }
  EXPECT_GE(tried, 5);
  EXPECT_LE(tried, 10);
  Pass(30);
  const LoadReport retry = Transfer(100);
  EXPECT_TRUE(retry.retries);
  EXPECT_LE(retry.took, absl::Milliseconds(101))
      << "a retry may waste a twentieth of the computing time";
  EXPECT_TRUE(Loads(Offer())) << "the measured speed must be used";
}

TEST_F(LoadModelTest, SlowDiskIsRetriedIndependently) {
  LearnCompute();
  LearnLink(500);
  LearnLink(1, LoadSource::kWireDisk);
  LoadReport disk = Offer();
  disk.source = LoadSource::kWireDisk;
  int tried = 0;
  for (int second = 0; second < 100; ++second, Pass(1)) {
    EXPECT_TRUE(Loads(Offer()));
    tried += Loads(disk) ? 1 : 0;
  }
  EXPECT_EQ(tried, 3);
}

TEST_F(LoadModelTest, SilentStoreIsNotAskedAgain) {
  LearnCompute();
  LoadReport late;
  late.is_late = true;
  late.plan_took = absl::Seconds(3);
  model_.OnFetch(late);
  EXPECT_FALSE(Asks());
}

TEST_F(LoadModelTest, AlwaysIgnoresCostButMeasures) {
  LoadModel always(LoadChoice::kAlways, [this] { return now_; });
  always.OnStep(512, absl::Milliseconds(1));
  LoadReport slow = Offer(0.001);
  slow.took = absl::Seconds(10);
  always.OnFetch(slow);
  LoadReport load = Offer();
  always.Decide(Prompt(), &load);
  EXPECT_EQ(load.decision, LoadDecision::kLoad);
  EXPECT_FALSE(load.limits.has_value());
  EXPECT_TRUE(load.load_estimate.has_value());
}

// With longer boundaries, the bytes grow ever more slowly (sliding windows) and the computing time
// ever faster. So either the shortest or the longest boundary is best.
TEST_F(LoadModelTest, ShortestOrLongestBoundaryIsCheapest) {
  const double window = 512, global = 3000, local = 15000, a = 1e-3, b = 2e-7;
  for (const double rate : {0.5e6, 2e6, 5e6, 8e6, 20e6, 100e6}) {
    const auto cost = [&](double boundary) {
      const double bytes = global * boundary + local * std::min(boundary, window);
      return bytes / rate + (8192 - boundary) * (a + b * (boundary + 8192) / 2);
    };
    for (double boundary = 128; boundary < 8192; boundary += 128) {
      EXPECT_GE(cost(boundary), std::min(cost(0), cost(8064)) * 0.999) << rate << " " << boundary;
    }
  }
}

}  // namespace
}  // namespace hearth
