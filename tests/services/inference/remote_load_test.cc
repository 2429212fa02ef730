// The choice between loading a prefix and computing it, over gRPC: a declined plan, an abandoned
// transfer.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "absl/time/time.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/inference/remote_prefix_cache.h"
#include "tests/services/inference/scripted_plan.h"
#include "tests/services/inference/scripted_store.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/small_layout.h"

namespace hearth {
namespace {

constexpr uint32_t kPromptTokens = 40;
constexpr uint32_t kStored = 32;

class RemoteLoadTest : public testing::Test {
 protected:
  RemoteLoadTest()
      : cache_(ConnectedTo(store_.address()), SmallFingerprint(), SmallLayout(), &counters_) {
    prefix_.token_ids = CountingTokens(kPromptTokens);
    prefix_.tenant = "default";
    store_.fetch = [this](grpc::ServerContext* context, const v1::FetchRequest& request,
                          ScriptedStore::FetchStream* stream) {
      token_ns_ = request.token_ns();
      stream->Write(ScriptedPlan(kStored, kStored));
      SendScriptedSlices(kStored, stream, nullptr, slices_);
      while (slices_ < INT32_MAX && !context->IsCancelled()) std::this_thread::yield();
      return grpc::Status::OK;
    };
  }
  // Sets the estimates of the next fetch: a link of `bytes_per_second`, and a prompt that takes
  // `compute` to compute.
  void Expect(uint64_t bytes_per_second, absl::Duration compute = absl::Seconds(1)) {
    LoadReport load;
    load.decision = LoadDecision::kLoad;
    load.source = LoadSource::kWire;
    load.bytes = bytes_per_second;
    load.took = absl::Seconds(1);
    model_.OnFetch(load);
    model_.OnStep(kPromptTokens, compute);
    prefix_.load = &model_;
    prefix_.work = {0, kPromptTokens};
  }
  FetchOutcome Fetch() { return cache_.Fetch(prefix_, 0, kPromptTokens - 1, absl::Seconds(60)); }

  std::atomic<int> slices_{INT32_MAX};  // number of slices that the store sends before it hangs
  std::atomic<uint64_t> token_ns_{0};   // token_ns of the last fetch request
  ScriptedStore store_;
  CacheCounters counters_;
  // The clock stands still, because a model tries a load after 30 seconds without a measurement.
  LoadModel model_{LoadChoice::kAuto, [] { return absl::UnixEpoch(); }};
  RemotePrefixCache cache_;
  PrefixRequest prefix_;
};

TEST_F(RemoteLoadTest, FastLoadIsMeasuredAndReported) {
  Expect(1 << 30, absl::Hours(1));  // a long prefill, so the time limits are minutes
  const FetchOutcome outcome = Fetch();
  EXPECT_EQ(outcome.usable_tokens, kStored);
  const LoadReport& report = outcome.load;
  EXPECT_EQ(report.decision, LoadDecision::kLoad);
  EXPECT_EQ(report.source, LoadSource::kWire);
  uint64_t bytes = 0;
  for (const auto& object : SmallObjects(kStored)) bytes += object->size_bytes;
  EXPECT_EQ(report.bytes, bytes);
  EXPECT_GT(report.took, absl::ZeroDuration());
  EXPECT_TRUE(report.plan_took.has_value());
}

TEST_F(RemoteLoadTest, StoreReceivesComputeTimePerToken) {
  Fetch();
  EXPECT_EQ(token_ns_, 0u) << "nothing was computed yet";
  Expect(1 << 30, absl::Milliseconds(60));
  Fetch();
  EXPECT_EQ(token_ns_, 1'500'000u);
}

TEST_F(RemoteLoadTest, ExpensiveLoadIsDeclined) {
  slices_ = 0;  // the store sends no slice, and the cache must not wait for one
  Expect(1);
  const FetchOutcome outcome = Fetch();
  EXPECT_EQ(outcome.usable_tokens, 0u);
  EXPECT_EQ(outcome.declined_tokens, kStored);
  EXPECT_EQ(outcome.matched_tokens, kStored);
  EXPECT_EQ(outcome.load.decision, LoadDecision::kCompute);
  EXPECT_EQ(counters_.Read().fetches.at("declined"), 1u);
}

TEST_F(RemoteLoadTest, StalledTransferIsAbandonedEarly) {
  slices_ = 1;
  Expect(1 << 30);
  const FetchOutcome outcome = Fetch();  // the time limit of this test is the fetch's timeout
  EXPECT_EQ(outcome.usable_tokens, 0u);
  EXPECT_EQ(outcome.declined_tokens, kStored);
  EXPECT_EQ(outcome.load.decision, LoadDecision::kAbandoned);
  EXPECT_EQ(counters_.Read().fetches.at("abandoned"), 1u);
  model_.OnFetch(outcome.load);
  LoadReport next = outcome.load;
  next.bytes = 1 << 30;
  model_.Compare(prefix_.work, &next);
  EXPECT_GT(*next.load_estimate, absl::Seconds(10)) << "learned at once";
  slices_ = INT32_MAX;
  prefix_.load = nullptr;
  EXPECT_EQ(Fetch().usable_tokens, kStored) << "the store is not left alone for it";
}

TEST_F(RemoteLoadTest, ExplanationGivesBothEstimates) {
  LoadReport report;
  EXPECT_EQ(LoadSentence(report), "");
  report.bytes = 28300000;
  report.load_estimate = absl::Milliseconds(12);
  report.compute_estimate = absl::Milliseconds(4911);
  EXPECT_EQ(LoadSentence(report),
            "loading 28.3 MB of it is expected to take 12 ms, computing 4911 ms");
}

}  // namespace
}  // namespace hearth
