// Calls to a store that does not answer end when their callers stop waiting.

#include "worker/prefix/call_stop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "services/inference/remote_prefix_cache.h"
#include "tests/services/inference/scripted_plan.h"
#include "tests/services/inference/scripted_store.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/small_layout.h"
#include "tests/support/fake_clock.h"

namespace hearth {
namespace {

TEST(CallStopTest, StopEndsEachCallOnce) {
  const auto stop = std::make_shared<CallStop>();
  int first = 0, second = 0, third = 0;
  const CallStop::Call one(stop, [&] { ++first; });
  {
    const CallStop::Call over(stop, [&] { ++second; });
  }
  stop->Stop();
  stop->Stop();
  const CallStop::Call late(stop, [&] { ++third; });
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 0);
  EXPECT_EQ(third, 1);
  EXPECT_TRUE(stop->stopped());
  const CallStop::Call nobody(nullptr, [] { FAIL(); });
}

// A store that sends plan_, if it is set, and then nothing until its callers leave.
class SilentStoreTest : public testing::Test {
 protected:
  SilentStoreTest() {
    store_.fetch = [this](grpc::ServerContext* context, auto&, ScriptedStore::FetchStream* stream) {
      if (plan_.has_plan()) stream->Write(plan_);
      return UntilGivenUp(context);
    };
    store_.lease = [this](grpc::ServerContext* context, auto*) { return UntilGivenUp(context); };
    store_.publish = [this](grpc::ServerContext* context, auto*) { return UntilGivenUp(context); };
    prefix_.token_ids = CountingTokens(kTokens);
    prefix_.tenant = "default";
  }

  grpc::Status UntilGivenUp(grpc::ServerContext* context) {
    asked_ = true;
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  }
  // Runs `call` and stops it from another thread: when the store was asked and has sent plan_ (if
  // set), the clock advances by `passes`, and then prefix_.stop stops the call.
  template <typename Call>
  void StopOnceAsked(Call call, absl::Duration passes = absl::ZeroDuration()) {
    asked_ = has_decided_ = false;
    prefix_.stop = std::make_shared<CallStop>();
    std::thread stopper([this, passes] {
      while (!asked_ || (plan_.has_plan() && !has_decided_)) std::this_thread::yield();
      clock_.Advance(passes);
      prefix_.stop->Stop();
    });
    call();
    stopper.join();
  }
  // Returns the outcome of a fetch that is stopped when the client's clock has advanced by
  // `passes`. Its timeout is an hour, so that nothing else ends the fetch on the system clock.
  std::string FetchStopped(absl::Duration passes, bool* left_alone) {
    RemotePrefixCache cache(ConnectedTo(store_.address()), SmallFingerprint(), SmallLayout(),
                            &counters_, /*shared_memory=*/false, nullptr, &clock_);
    const absl::Time start = clock_.Now();
    const auto counted = counters_.Read().fetches;
    prefix_.load = &model_;
    StopOnceAsked([&] { cache.Fetch(prefix_, 0, kTokens - 1, absl::Hours(1)); }, passes);
    *left_alone = !cache.breaker().Allows(start);
    for (const auto& [outcome, count] : counters_.Read().fetches) {
      const auto before_it = counted.find(outcome);
      if (before_it == counted.end() || before_it->second < count) return outcome;
    }
    return "nothing";
  }
  std::unique_ptr<RemotePrefixCache> CacheByClock() {
    return std::make_unique<RemotePrefixCache>(ConnectedTo(store_.address()), SmallFingerprint(),
                                               SmallLayout(), &counters_, /*shared_memory=*/false,
                                               nullptr, &clock_);
  }

  static constexpr uint32_t kTokens = 40;
  std::atomic<bool> asked_{false};
  v1::FetchResponse plan_;  // sent before the store goes silent, if set
  ScriptedStore store_;
  CacheCounters counters_;
  FakeClock clock_;
  std::atomic<bool> has_decided_{false};
  LoadModel model_{LoadChoice::kAlways, [this] {
                     has_decided_ = true;
                     return absl::UnixEpoch();
                   }};
  PrefixRequest prefix_;
};

TEST_F(SilentStoreTest, CallerLeavingEndsFetchAndLease) {
  RemotePrefixCache cache(ConnectedTo(store_.address()), SmallFingerprint(), SmallLayout(),
                          &counters_);
  StopOnceAsked(
      [&] { EXPECT_EQ(cache.Fetch(prefix_, 0, 39, absl::InfiniteDuration()).usable_tokens, 0u); });
  StopOnceAsked([&] {
    const LeaseTerms terms{absl::Hours(1), absl::Hours(1), 1};
    EXPECT_EQ(cache.Lease(prefix_, 0, 39, terms, absl::InfiniteDuration()).lease, nullptr);
  });
  const std::map<std::string, uint64_t> once = {{"cancelled", 1}};
  EXPECT_EQ(counters_.Read().fetches, once) << "the store was not late: the caller left";
  EXPECT_EQ(counters_.Read().leases, once);
}

TEST_F(SilentStoreTest, FetchPastDeadlineOpensBreaker) {
  bool left_alone = true;
  EXPECT_EQ(FetchStopped(absl::Minutes(30), &left_alone), "cancelled");
  EXPECT_FALSE(left_alone);
  EXPECT_EQ(FetchStopped(absl::Hours(1), &left_alone), "deadline");
  EXPECT_TRUE(left_alone);
}

TEST_F(SilentStoreTest, TransferPastDeadlineKeepsBreakerClosed) {
  plan_ = ScriptedPlan(32, 32);
  bool left_alone = true;
  EXPECT_EQ(FetchStopped(absl::Hours(1), &left_alone), "deadline");
  EXPECT_FALSE(left_alone);
}

// A store that shares its memory keeps the call open until the deadline. The fetch must end as
// "deadline": if it ended as "corrupt", the cache would fetch again.
TEST_F(SilentStoreTest, SharedTransferDeadlineIsNotCorrupt) {
  plan_ = ScriptedPlan(32, 32);
  plan_.mutable_plan()->mutable_shared();
  bool left_alone = true;
  EXPECT_EQ(FetchStopped(absl::Hours(1), &left_alone), "deadline");
  EXPECT_FALSE(left_alone);
}

TEST_F(SilentStoreTest, LeasePastDeadlineCountsAsLate) {
  const auto cache = CacheByClock();
  const LeaseTerms terms{absl::Hours(1), absl::Hours(1), 1};
  StopOnceAsked([&] { cache->Lease(prefix_, 0, 39, terms, absl::Hours(1)); }, absl::Hours(2));
  EXPECT_EQ(counters_.Read().leases, (std::map<std::string, uint64_t>{{"deadline", 1}}));
}

TEST_F(SilentStoreTest, PublishPastDeadlineCountsAsLate) {
  const auto cache = CacheByClock();
  std::thread stopper([&] {
    while (!asked_) std::this_thread::yield();
    clock_.Advance(absl::Hours(2));
    cache->CancelCalls();
  });
  PublishRequestSpec spec;
  spec.prefix = prefix_;
  spec.boundaries = {32};
  spec.objects = SmallObjects(32);
  EXPECT_EQ(cache->Publish(spec, absl::Hours(1)).published_tokens, 0u);
  stopper.join();
  EXPECT_EQ(counters_.Read().publishes, (std::map<std::string, uint64_t>{{"deadline", 1}}));
}

}  // namespace
}  // namespace hearth
