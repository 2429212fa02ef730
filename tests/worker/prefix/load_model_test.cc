// Compute or load: what is learned, what follows from it, and what ends a mistake.

#include "worker/prefix/load_model.h"

#include <algorithm>
#include <memory>

#include "gtest/gtest.h"
#include "worker/prefix/load_trial.h"
#include "worker/prefix/step_costs.h"

namespace hearth {
namespace {

constexpr double kMegabyte = 1e6;
constexpr uint32_t kStep = 512;

// A machine that computes a token at position p in a + b * p seconds, and a step in s more.
struct Machine {
  double s = 0.02, a = 1e-3, b = 2e-7;
  double Seconds(double rows, double position) const { return s + rows * (a + b * position); }
};

TEST(StepCostsTest, APromptIsForeseenFromTheStepsOfOthers) {
  const Machine machine;
  StepCosts costs;
  EXPECT_FALSE(costs.known());
  for (uint32_t begin = 0; begin < 8192; begin += 512) {
    costs.Add(512, begin + 256, machine.Seconds(512, begin + 256));
    costs.Add(64, begin + 32, machine.Seconds(64, begin + 32));
  }
  double expected = 0;
  for (uint32_t begin = 1024; begin < 6144; begin += 512) {
    expected += machine.Seconds(512, begin + 256);
  }
  EXPECT_NEAR(costs.Seconds(1024, 6144, kStep), expected, expected * 0.02);
  EXPECT_EQ(costs.Seconds(100, 100, kStep), 0);
}

TEST(StepCostsTest, StepsThatAreAllAlikeForeseeTheirLike) {
  StepCosts costs;
  for (int i = 0; i < 20; ++i) costs.Add(512, 256, 0.5);
  EXPECT_NEAR(costs.Seconds(0, 512, kStep), 0.5, 0.01);
  EXPECT_GT(costs.Seconds(0, 2048, kStep), 1.9) << "no less than four of them";
}

TEST(StepCostsTest, AMachineThatBecomesSlowIsNoticedWithinAFewPrompts) {
  StepCosts costs;
  for (int i = 0; i < 100; ++i) costs.Add(512, 1024, 0.5);
  for (int i = 0; i < 40; ++i) costs.Add(512, 1024, 1.5);
  EXPECT_NEAR(costs.Seconds(768, 1280, kStep), 1.5, 0.15);
}

TEST(StepCostsTest, NothingCostsLessThanNothing) {
  StepCosts costs;
  costs.Add(512, 4096, 0.5);
  costs.Add(512, 256, 0.9);  // noise: later rows seem cheaper
  costs.Add(64, 128, 0.6);
  for (const uint32_t begin : {0u, 2048u, 100000u}) {
    EXPECT_GE(costs.Seconds(begin, begin + 512, kStep), 0) << begin;
  }
}

class LoadTrialTest : public testing::Test {
 protected:
  LoadTrialTest() : model_(LoadChoice::kAuto, [this] { return now_; }) {}
  void Pass(double seconds) { now_ += absl::Seconds(seconds); }
  // A prompt of 2,048 takes two seconds from here on.
  void LearnCompute() {
    for (int i = 0; i < 20; ++i) model_.OnStep(kStep, 1024, absl::Milliseconds(500));
  }
  void LearnLink(double bytes_per_second, LoadSource source = LoadSource::kWire) {
    for (int i = 0; i < 3; ++i) {
      model_.OnLoad(source, static_cast<uint64_t>(bytes_per_second), absl::Seconds(1));
    }
  }
  static LoadTrial::Work Prompt(uint32_t have = 0, uint32_t tokens = 2112) {
    LoadTrial::Work work;
    work.have_tokens = have;
    work.tokens = tokens;
    work.step_tokens = kStep;
    work.budget = absl::Seconds(2);
    return work;
  }
  static LoadOffer Offer(double megabytes = 28, uint32_t boundary = 2048) {
    LoadOffer offer;
    offer.boundary = boundary;
    offer.bytes = static_cast<uint64_t>(megabytes * kMegabyte);
    offer.message_bytes = 256 << 10;
    return offer;
  }
  bool Loads(const LoadOffer& offer, LoadTrial::Work work = Prompt()) {
    LoadTrial trial;
    trial.Arm(&model_, std::move(work));
    const bool accepted = trial.Accepts(offer);
    if (accepted) trial.OnFailed();
    return accepted;
  }

  absl::Time now_ = absl::UnixEpoch();
  LoadModel model_;
};

TEST_F(LoadTrialTest, WhatIsNotKnownYetIsLoadedAsEver) {
  LoadTrial unarmed;
  EXPECT_TRUE(unarmed.Accepts(Offer()));
  EXPECT_EQ(unarmed.Patience(0), std::nullopt);
  EXPECT_TRUE(Loads(Offer()));
  LearnCompute();
  EXPECT_TRUE(Loads(Offer())) << "of the link nothing is known";
}

TEST_F(LoadTrialTest, TheFasterOfTheTwoIsChosen) {
  LearnCompute();
  for (const double megabytes_per_second : {0.2, 1.0, 5.0, 10.0, 20.0, 50.0, 500.0}) {
    LearnLink(megabytes_per_second * kMegabyte);
    LearnLink(megabytes_per_second * kMegabyte);
    for (const uint32_t boundary : {128u, 512u, 2048u}) {
      const double megabytes = 28.0 * boundary / 2048;
      const bool faster = megabytes / megabytes_per_second < 2.0 * boundary / 2048;
      EXPECT_EQ(Loads(Offer(megabytes, boundary)), faster)
          << boundary << " at " << megabytes_per_second;
    }
  }
}

TEST_F(LoadTrialTest, ALoadOfMillisecondsIsTakenWhateverComputingCosts) {
  for (int i = 0; i < 20; ++i) model_.OnStep(kStep, 1024, absl::Milliseconds(1));
  LearnLink(100 * kMegabyte);
  EXPECT_TRUE(Loads(Offer(0.5, 128)));
}

TEST_F(LoadTrialTest, WhatTheWorkerHasIsNotComputedAgainEitherWay) {
  LearnCompute();
  LearnLink(20 * kMegabyte);  // 28 MB in 1.4 s
  EXPECT_TRUE(Loads(Offer(), Prompt(0)));
  EXPECT_FALSE(Loads(Offer(), Prompt(1536))) << "half a second of computing is all it spares";
}

TEST_F(LoadTrialTest, OthersThatComputeMakeLoadingWorthMore) {
  LearnCompute();
  LearnLink(10 * kMegabyte);  // 2.8 s
  EXPECT_FALSE(Loads(Offer()));
  LoadTrial::Work busy = Prompt();
  busy.beside = {4096};
  EXPECT_TRUE(Loads(Offer(), busy)) << "beside another prompt it takes four";
}

TEST_F(LoadTrialTest, LoadsUnderWayMakeAnotherOneSlower) {
  LearnCompute();
  LearnLink(20 * kMegabyte);
  LoadTrial first;
  first.Arm(&model_, Prompt());
  ASSERT_TRUE(first.Accepts(Offer()));
  EXPECT_FALSE(Loads(Offer())) << "it shares the link";
  first.OnFailed();
  EXPECT_TRUE(Loads(Offer()));
}

TEST_F(LoadTrialTest, OneThatIsDroppedMidwayIsNotUnderWayAnyMore) {
  LearnCompute();
  LearnLink(20 * kMegabyte);
  auto dropped = std::make_unique<LoadTrial>();
  dropped->Arm(&model_, Prompt());
  ASSERT_TRUE(dropped->Accepts(Offer()));
  dropped.reset();
  EXPECT_TRUE(Loads(Offer()));
}

TEST_F(LoadTrialTest, AProbeUnderWayIsNoMoreThanItTakes) {
  LearnCompute();
  LearnLink(20 * kMegabyte);
  LoadTrial probe;
  probe.ArmProbe(&model_);
  ASSERT_TRUE(probe.Accepts(Offer(2800)));
  EXPECT_LT(*model_.LoadTime(LoadSource::kWire, 1), absl::Milliseconds(60));
  probe.OnFailed();
  EXPECT_LT(*model_.LoadTime(LoadSource::kWire, 1), absl::Milliseconds(1));
}

TEST_F(LoadTrialTest, NobodyIsAskedWhereEvenAllOfItIsNotWorthLoading) {
  LearnCompute();
  LearnLink(1 * kMegabyte);
  LoadTrial trial;
  trial.Arm(&model_, Prompt());
  EXPECT_FALSE(trial.WorthAsking(2111, 29 * 1000 * 1000));
  EXPECT_EQ(trial.report().decision, LoadDecision::kCompute);
  LearnLink(500 * kMegabyte, LoadSource::kShared);
  LoadTrial shared;
  shared.Arm(&model_, Prompt());
  EXPECT_TRUE(shared.WorthAsking(2111, 29 * 1000 * 1000)) << "it may come by shared memory";
}

// A transfer of 28 MB that comes at `rate` bytes a second, a message at a time; how long it was
// waited for.
absl::Duration Transfer(LoadTrial* trial, absl::Time* now, double rate, bool* arrived) {
  const LoadOffer offer = [] {
    LoadOffer made;
    made.boundary = 2048;
    made.bytes = 28 * 1000 * 1000;
    made.message_bytes = 256 << 10;
    return made;
  }();
  const absl::Time begin = *now;
  EXPECT_TRUE(trial->Accepts(offer));
  uint64_t received = 0;
  *arrived = false;
  while (received < offer.bytes) {
    const uint64_t message = std::min(offer.message_bytes, offer.bytes - received);
    const absl::Duration comes = absl::Seconds(static_cast<double>(message) / rate);
    const auto patience = trial->Patience(received);
    if (patience.has_value() && comes > *patience) {
      *now += *patience;
      trial->OnCutOff(received);
      return *now - begin;
    }
    *now += comes;
    received += message;
  }
  *arrived = true;
  trial->OnArrived();
  trial->OnRestored(absl::ZeroDuration());
  return *now - begin;
}

TEST_F(LoadTrialTest, ATransferThatIsFarTooSlowCostsATenthOfComputing) {
  LearnCompute();
  LearnLink(100 * kMegabyte);
  LoadTrial trial;
  trial.Arm(&model_, Prompt());
  bool arrived = true;
  const absl::Duration waited = Transfer(&trial, &now_, 0.2 * kMegabyte, &arrived);
  EXPECT_FALSE(arrived);
  EXPECT_LE(waited, absl::Milliseconds(220));
  EXPECT_EQ(trial.report().decision, LoadDecision::kAbandoned);
  EXPECT_FALSE(Loads(Offer())) << "and it is learned at once";
}

TEST_F(LoadTrialTest, ATransferThatIsSlowerThanForeseenButFasterThanComputingGoesOn) {
  LearnCompute();
  LearnLink(100 * kMegabyte);
  LoadTrial trial;
  trial.Arm(&model_, Prompt());
  bool arrived = false;
  Transfer(&trial, &now_, 20 * kMegabyte, &arrived);
  EXPECT_TRUE(arrived);
  EXPECT_EQ(trial.report().decision, LoadDecision::kLoad);
}

// The time left decides, not the time passed.
TEST_F(LoadTrialTest, ATransferThatIsNearlyOverIsNotCutOff) {
  LearnCompute();
  LearnLink(20 * kMegabyte);
  LoadTrial trial;
  trial.Arm(&model_, Prompt());
  ASSERT_TRUE(trial.Accepts(Offer()));
  Pass(5);
  const auto patience = trial.Patience(27 * 1000 * 1000);
  ASSERT_TRUE(patience.has_value());
  EXPECT_GE(*patience, absl::Seconds(1)) << "a megabyte is left, and computing takes two seconds";
  EXPECT_EQ(trial.Patience(1000 * 1000), absl::ZeroDuration());
  trial.OnFailed();
}

TEST_F(LoadTrialTest, ALoadThatIsWorthItMayOutlastTheBudget) {
  LearnCompute();
  LearnLink(20 * kMegabyte);
  absl::Duration extended;
  LoadTrial trial;
  LoadTrial::Work work = Prompt();
  work.budget = absl::Milliseconds(100);
  trial.Arm(&model_, work, [&](absl::Duration most) { extended = most; });
  ASSERT_TRUE(trial.Accepts(Offer()));
  EXPECT_GE(extended, absl::Milliseconds(1400));
  trial.OnFailed();
}

TEST_F(LoadTrialTest, APlanIsWaitedForNoLongerThanComputingTakes) {
  LoadTrial unknown;
  unknown.Arm(&model_, Prompt());
  EXPECT_EQ(unknown.PlanPatience(), absl::Seconds(2));
  EXPECT_FALSE(unknown.is_hurried());
  LearnCompute();
  LoadTrial trial;
  trial.Arm(&model_, Prompt(0, 512));
  EXPECT_LE(trial.PlanPatience(), absl::Milliseconds(550));
  EXPECT_TRUE(trial.is_hurried());
}

TEST_F(LoadTrialTest, ALinkThatWasSlowIsProbedNowAndThenAndUsedAgainWhenItIsFast) {
  LearnCompute();
  LearnLink(1 * kMegabyte);
  int probes = 0;
  bool measures = false;
  const auto ask = [&] {
    LoadTrial trial;
    trial.Arm(&model_, Prompt());
    if (trial.WorthAsking(2048, 28 * 1000 * 1000)) return true;
    const std::shared_ptr<LoadTrial> probe = trial.TakeProbe();
    if (probe == nullptr) return false;
    ++probes;
    if (!measures) return false;
    EXPECT_TRUE(probe->Accepts(Offer()));
    Pass(2);
    probe->OnCutOff(1 << 20);
    return false;
  };
  for (int second = 0; second < 60; ++second, Pass(1)) ASSERT_FALSE(ask());
  EXPECT_GE(probes, 10) << "as long as nothing is measured, every five seconds";
  measures = true;
  probes = 0;
  for (int second = 0; second < 600; ++second, Pass(1)) ASSERT_FALSE(ask());
  EXPECT_GE(probes, 4);
  EXPECT_LE(probes, 10) << "ever more seldom";
  LoadTrial probe;
  probe.ArmProbe(&model_);
  ASSERT_TRUE(probe.Accepts(Offer()));
  EXPECT_GT(*probe.Patience(0), absl::Seconds(1));
  Pass(0.01);
  EXPECT_EQ(probe.Patience(1 << 20), absl::ZeroDuration()) << "a little is enough";
  probe.OnCutOff(1 << 20);
  EXPECT_TRUE(ask());
  EXPECT_TRUE(Loads(Offer()));
}

TEST_F(LoadTrialTest, ASlowDiskIsProbedWhileTheRamBesideItIsFast) {
  LearnCompute();
  LearnLink(500 * kMegabyte);
  LearnLink(1 * kMegabyte, LoadSource::kWireDisk);
  LoadOffer disk = Offer();
  disk.source = LoadSource::kWireDisk;
  int probes = 0;
  for (int second = 0; second < 60; ++second, Pass(1)) {
    EXPECT_TRUE(Loads(Offer()));
    LoadTrial trial;
    trial.Arm(&model_, Prompt());
    ASSERT_FALSE(trial.Accepts(disk));
    if (trial.TakeProbe() != nullptr) ++probes;
  }
  EXPECT_GE(probes, 2);
}

TEST_F(LoadTrialTest, ASilentStoreIsNotWaitedForAgainAndAgain) {
  LearnCompute();
  LoadTrial trial;
  trial.Arm(&model_, Prompt());
  trial.OnAsk();
  Pass(3);
  trial.OnPlan(/*late=*/true);
  LoadTrial next;
  next.Arm(&model_, Prompt());
  EXPECT_FALSE(next.WorthAsking(2048, 28 * 1000 * 1000));
}

TEST_F(LoadTrialTest, ToldToLoadItLoadsAndOnlyMeasures) {
  LoadModel always(LoadChoice::kAlways, [this] { return now_; });
  always.OnStep(kStep, 1024, absl::Milliseconds(1));
  always.OnLoad(LoadSource::kWire, 1000, absl::Seconds(10));
  LoadTrial trial;
  trial.Arm(&always, Prompt());
  EXPECT_TRUE(trial.WorthAsking(2048, 28 * 1000 * 1000));
  EXPECT_TRUE(trial.Accepts(Offer()));
  EXPECT_EQ(trial.Patience(0), std::nullopt);
  EXPECT_TRUE(trial.report().load_estimate.has_value());
  trial.OnFailed();
}

// Why two boundaries are enough: with windows bytes grow slower and slower, and computing faster
// and faster, so that no boundary between is the best.
TEST_F(LoadTrialTest, NoBoundaryBetweenIsBetterThanBothEnds) {
  const Machine machine;
  const double window = 512, global = 3000, local = 15000;
  for (const double rate : {0.5e6, 2e6, 5e6, 8e6, 20e6, 100e6}) {
    const auto cost = [&](double boundary) {
      const double bytes = global * boundary + local * std::min(boundary, window);
      const double tokens = 8192 - boundary;
      return bytes / rate + tokens * (machine.a + machine.b * (boundary + 8192) / 2);
    };
    for (double boundary = 128; boundary < 8192; boundary += 128) {
      EXPECT_GE(cost(boundary), std::min(cost(0), cost(8064)) * 0.999) << rate << " " << boundary;
    }
  }
}

}  // namespace
}  // namespace hearth
