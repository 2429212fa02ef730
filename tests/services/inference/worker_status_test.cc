// The status page of a worker, and what its requests add to the status page of the store.
#include "services/inference/worker_status.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "services/inference/remote_prefix_cache.h"
#include "services/inference/store_reporter.h"
#include "services/store/store_status.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/small_layout.h"
#include "tests/services/store/store_server.h"
#include "tests/support/fake_clock.h"

namespace hearth {
namespace {

// A worker that has a prefix pool and a store.
class WorkerStatusTest : public ::testing::Test {
 protected:
  WorkerStatusTest() {
    WorkerServer::Options options;
    options.engine.memory.pool_bytes = 16 << 20;
    worker_ = std::make_unique<WorkerServer>(options);
    cache_ = std::make_unique<RemotePrefixCache>(ConnectedTo(store_.address()),
                                                 worker_->engine()->fingerprint(),
                                                 worker_->engine()->layout(), &counters_);
    worker_->SetCache(cache_.get());
  }
  ~WorkerStatusTest() override { worker_.reset(); }

  v1::Finished Generate() {
    v1::GenerateRequest request = IdsRequest(CountingTokens(100), 4);
    request.set_wait_published(true);
    const Generation generation = worker_->Generate(request);
    EXPECT_TRUE(generation.status.ok()) << generation.status.error_message();
    return generation.finished;
  }

  StoreServer store_{StoreServer::SmallStore("")};
  CacheCounters counters_;
  std::unique_ptr<RemotePrefixCache> cache_;
  std::unique_ptr<WorkerServer> worker_;
  FakeClock clock_;
};

TEST_F(WorkerStatusTest, PageHasRequestsMemoryAndTimes) {
  WorkerStatus status(worker_->engine(), &counters_, "1.2.3", &clock_);
  Generate();
  status.figures()->Sample();
  Generate();
  FinishedInfo info;
  for (const double ttft_ms : {10, 20, 30}) {
    info.ttft_ms = ttft_ms;
    status.RecordTimes(info);
  }
  const nlohmann::json json = nlohmann::json::parse(status.figures()->JsonText());
  EXPECT_EQ(json["program"], "hearth-worker");
  EXPECT_EQ(json["model"]["fingerprint"], DigestHex(worker_->engine()->fingerprint().digest()));
  EXPECT_EQ(json["running"], 0);
  EXPECT_EQ(json["places"], 8);
  EXPECT_EQ(json["totals"]["requests"], 2);
  EXPECT_EQ(json["totals"]["prompt_tokens"], 200);
  EXPECT_EQ(json["sources"]["worker"], 96);
  EXPECT_EQ(json["sources"]["computed"], 104);
  EXPECT_EQ(json["steps"][0]["cached_tokens"], 0);
  EXPECT_EQ(json["step_now"]["cached_tokens"], 96);
  EXPECT_EQ(json["requests"]["requests_finished"], 2);
  EXPECT_EQ(json["latencies"][0]["name"], "ttft");
  EXPECT_EQ(json["latencies"][0]["count"], 3);
  EXPECT_EQ(json["latencies"][0]["p50_s"], 0.02);
  bool has_pool = false;
  for (const auto& tier : json["tiers"]) {
    if (tier["tier"] != "worker") continue;
    has_pool = true;
    EXPECT_EQ(tier["capacity_bytes"], 16 << 20);
    EXPECT_GT(tier["bytes"], 0);
  }
  EXPECT_TRUE(has_pool);
  for (const auto& [name, count] : json["errors"].items()) EXPECT_EQ(count, 0) << name;
}

TEST_F(WorkerStatusTest, LatenciesCoverOnlyRecentRequests) {
  WorkerStatus status(worker_->engine(), nullptr, "1", &clock_);
  FinishedInfo info;
  info.ttft_ms = 1e6;
  status.RecordTimes(info);
  info.ttft_ms = 1;
  for (size_t i = 0; i < WorkerStatus::kRecentRequests; ++i) status.RecordTimes(info);
  const nlohmann::json ttft = nlohmann::json::parse(status.figures()->JsonText())["latencies"][0];
  EXPECT_EQ(ttft["p99_s"], 0.001);
  EXPECT_EQ(ttft["count"], WorkerStatus::kRecentRequests + 1);
}

TEST_F(WorkerStatusTest, UnreachableStoreIsShown) {
  Reachability reachability("store", "s:1");
  WorkerStatus status(worker_->engine(), &counters_, "1.2.3", &clock_, &reachability);
  const auto shown = [&] {
    clock_.Advance(absl::Minutes(1));
    return nlohmann::json::parse(status.figures()->JsonText())["errors"]["stores_unreachable"];
  };
  EXPECT_EQ(shown(), 0);
  reachability.Note(false, "refused");
  EXPECT_EQ(shown(), 1);
  reachability.Note(true, "");
  EXPECT_EQ(shown(), 0);
}

// The store's page counts each prompt token of the fleet once: in a lookup, or in a report.
TEST_F(WorkerStatusTest, StorePageCountsEveryTokenOnce) {
  v1::ReportRequest names;
  StoreReporter reporter(
      names, [&](v1::ReportRequest* report) { FillReport(*worker_->engine(), report); },
      [&](const v1::ReportRequest& report, absl::Duration) {
        return cache_->Report(report, absl::Minutes(10));
      });
  const FleetTable* const fleet = store_.service()->fleet();
  StatusFigures page("hearth-store", "1", StoreFigures(store_.store(), fleet), &clock_);
  const auto figures = [&] {
    reporter.ReportOnce();
    clock_.Advance(absl::Seconds(1));
    return nlohmann::json::parse(page.JsonText());
  };
  const auto expect_all_counted = [&](uint64_t prompt_tokens, uint64_t restored) {
    const nlohmann::json lookups = figures()["lookups"];
    const auto of = [&](const char* name) { return lookups[name].get<uint64_t>(); };
    EXPECT_EQ(of("lookup_tokens") + of("unasked_tokens"), prompt_tokens) << lookups;
    EXPECT_EQ(of("hit_tokens") + of("held_tokens") + of("unasked_held_tokens"), restored)
        << lookups;
  };
  Generate();
  expect_all_counted(100, 0);
  EXPECT_EQ(Generate().computed_tokens(), 4u);
  expect_all_counted(200, 96);
  EXPECT_EQ(Generate().computed_tokens(), 4u);
  expect_all_counted(300, 192);
  const nlohmann::json json = figures();
  EXPECT_EQ(json["fleet"]["workers"], 1);
  EXPECT_GT(json["lookups"]["saved_us"], 0);
  const FleetWorker worker = fleet->Workers().at(0);
  EXPECT_EQ(worker.report.prompt_tokens(), 300u);
  EXPECT_EQ(worker.report.cached_tokens(), 192u);
  EXPECT_EQ(worker.report.places(), 8u);
}

}  // namespace
}  // namespace hearth
