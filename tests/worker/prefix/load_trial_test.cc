// Compute or load: what is learned, what follows from it, and what ends a mistake.

#include "worker/prefix/load_trial.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace hearth {
namespace {

constexpr double kMegabyte = 1e6;
class LoadTrialTest : public testing::Test {
 protected:
  LoadTrialTest() : model_(LoadChoice::kAuto, [this] { return now_; }) {}
  void Pass(double seconds) { now_ += absl::Seconds(seconds); }
  // A prompt of 2,048 takes two seconds from here on.
  void LearnCompute() {
    for (int i = 0; i < 20; ++i) model_.OnStep(512, absl::Milliseconds(500));
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
    LoadTrial trial(&model_, std::move(work));
    const bool accepted = trial.Accepts(offer);
    if (accepted) trial.OnEnd(LoadDecision::kMiss);
    return accepted;
  }

  absl::Time now_ = absl::UnixEpoch();
  LoadModel model_;
};

TEST_F(LoadTrialTest, PrefixIsLoadedWhileItsCostsAreUnknown) {
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
  for (int i = 0; i < 20; ++i) model_.OnStep(512, absl::Milliseconds(1));
  LearnLink(100 * kMegabyte);
  EXPECT_TRUE(Loads(Offer(0.5, 128)));
}

TEST_F(LoadTrialTest, TokensTheWorkerHasSpareNoComputing) {
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
  busy.others = 1;
  EXPECT_TRUE(Loads(Offer(), busy)) << "beside another prompt it takes four";
}

TEST_F(LoadTrialTest, StoreIsNotAskedIfEvenTheWholePrefixIsNotWorthLoading) {
  LearnCompute();
  LearnLink(1 * kMegabyte);
  LoadTrial trial(&model_, Prompt());
  EXPECT_FALSE(trial.WorthAsking(2111, 29 * 1000 * 1000));
  EXPECT_EQ(trial.report().decision, LoadDecision::kCompute);
  LearnLink(500 * kMegabyte, LoadSource::kShared);
  LoadTrial shared(&model_, Prompt());
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
      trial->OnEnd(LoadDecision::kAbandoned, received);
      return *now - begin;
    }
    *now += comes;
    received += message;
  }
  *arrived = true;
  trial->OnEnd(LoadDecision::kLoad);
  return *now - begin;
}

TEST_F(LoadTrialTest, ATransferThatIsFarTooSlowCostsATwentiethOfComputing) {
  LearnCompute();
  LearnLink(100 * kMegabyte);
  LoadTrial trial(&model_, Prompt());
  bool arrived = true;
  const absl::Duration waited = Transfer(&trial, &now_, 0.2 * kMegabyte, &arrived);
  EXPECT_FALSE(arrived);
  EXPECT_LE(waited, absl::Milliseconds(110));
  EXPECT_EQ(trial.report().decision, LoadDecision::kAbandoned);
  EXPECT_FALSE(Loads(Offer())) << "and it is learned at once";
}

TEST_F(LoadTrialTest, ATransferThatIsSlowerThanForeseenButFasterThanComputingGoesOn) {
  LearnCompute();
  LearnLink(100 * kMegabyte);
  LoadTrial trial(&model_, Prompt());
  bool arrived = false;
  Transfer(&trial, &now_, 20 * kMegabyte, &arrived);
  EXPECT_TRUE(arrived);
  EXPECT_EQ(trial.report().decision, LoadDecision::kLoad);
}

// The time left decides, not the time passed.
TEST_F(LoadTrialTest, ATransferThatIsNearlyOverIsNotCutOff) {
  LearnCompute();
  LearnLink(20 * kMegabyte);
  LoadTrial trial(&model_, Prompt());
  ASSERT_TRUE(trial.Accepts(Offer()));
  Pass(5);
  const auto patience = trial.Patience(27 * 1000 * 1000);
  ASSERT_TRUE(patience.has_value());
  EXPECT_GE(*patience, absl::Seconds(1)) << "a megabyte is left, and computing takes two seconds";
  EXPECT_EQ(trial.Patience(1000 * 1000), absl::ZeroDuration());
  trial.OnEnd(LoadDecision::kMiss);
}

TEST_F(LoadTrialTest, ALoadThatIsWorthItMayOutlastTheBudget) {
  LoadTrial::Work work = Prompt();
  work.budget = absl::Milliseconds(100);
  LoadTrial unknown(&model_, work);
  EXPECT_EQ(unknown.MostTime(), work.budget);
  LearnCompute();
  LoadTrial trial(&model_, work);
  EXPECT_GE(trial.MostTime(), absl::Milliseconds(1400));
}

TEST_F(LoadTrialTest, APlanIsWaitedForNoLongerThanComputingTakes) {
  LoadTrial unknown(&model_, Prompt());
  EXPECT_EQ(unknown.PlanPatience(), absl::Seconds(2));
  LearnCompute();
  LoadTrial trial(&model_, Prompt(0, 512));
  EXPECT_LE(trial.PlanPatience(), absl::Milliseconds(550));
}

TEST_F(LoadTrialTest, AMachineThatBecomesSlowIsNoticedWithinAFewPrompts) {
  for (int i = 0; i < 100; ++i) model_.OnStep(512, absl::Milliseconds(500));
  for (int i = 0; i < 40; ++i) model_.OnStep(512, absl::Milliseconds(1500));
  EXPECT_GT(*model_.ComputeTime(512), absl::Milliseconds(1350));
}

TEST_F(LoadTrialTest, ALinkThatWasSlowIsTriedNowAndThenAndUsedAgainWhenItIsFast) {
  LearnCompute();
  LearnLink(1 * kMegabyte);
  int tried = 0;
  bool arrived = false;
  const auto ask = [&](double rate) {
    LoadTrial trial(&model_, Prompt());
    if (!trial.WorthAsking(2048, 28 * 1000 * 1000)) return;
    ++tried;
    trial.OnPlan(absl::ZeroDuration());
    const absl::Duration waited = Transfer(&trial, &now_, rate, &arrived);
    if (!arrived) {
      EXPECT_LE(waited, absl::Milliseconds(110)) << "a twentieth of computing";
    }
  };
  for (int second = 0; second < 300; ++second, Pass(1)) ask(1 * kMegabyte);
  EXPECT_GE(tried, 5);
  EXPECT_LE(tried, 10);
  EXPECT_FALSE(arrived);
  Pass(30);
  ask(100 * kMegabyte);
  EXPECT_TRUE(arrived);
  EXPECT_TRUE(Loads(Offer())) << "a single fast load is believed";
}

TEST_F(LoadTrialTest, ASlowDiskIsTriedAgainWhileTheRamBesideItIsFast) {
  LearnCompute();
  LearnLink(500 * kMegabyte);
  LearnLink(1 * kMegabyte, LoadSource::kWireDisk);
  LoadOffer disk = Offer();
  disk.source = LoadSource::kWireDisk;
  int tried = 0;
  for (int second = 0; second < 100; ++second, Pass(1)) {
    EXPECT_TRUE(Loads(Offer()));
    tried += Loads(disk) ? 1 : 0;
  }
  EXPECT_EQ(tried, 3);
}

TEST_F(LoadTrialTest, ASilentStoreIsNotWaitedForAgainAndAgain) {
  LearnCompute();
  LoadTrial trial(&model_, Prompt());
  trial.OnPlan(absl::Seconds(3), /*late=*/true);
  LoadTrial next(&model_, Prompt());
  EXPECT_FALSE(next.WorthAsking(2048, 28 * 1000 * 1000));
}

TEST_F(LoadTrialTest, ToldToLoadItLoadsAndOnlyMeasures) {
  LoadModel always(LoadChoice::kAlways, [this] { return now_; });
  always.OnStep(512, absl::Milliseconds(1));
  always.OnLoad(LoadSource::kWire, 1000, absl::Seconds(10));
  LoadTrial trial(&always, Prompt());
  EXPECT_TRUE(trial.WorthAsking(2048, 28 * 1000 * 1000));
  EXPECT_TRUE(trial.Accepts(Offer()));
  EXPECT_EQ(trial.Patience(0), std::nullopt);
  EXPECT_TRUE(trial.report().load_estimate.has_value());
  trial.OnEnd(LoadDecision::kMiss);
}

// Why two boundaries are enough: with windows bytes grow slower and slower, and computing faster
// and faster, so that no boundary between is the best.
TEST_F(LoadTrialTest, NoBoundaryBetweenIsBetterThanBothEnds) {
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
