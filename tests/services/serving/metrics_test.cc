#include "services/serving/metrics.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"

namespace hearth {
namespace {

TEST(Metrics, RendersSourcesGroupedByName) {
  Metrics metrics("hearth_test");
  metrics.AddSource([] {
    return std::vector<MetricSample>{{"hearth_test_bytes", "Bytes.", false, {{"tier", "host"}}, 7},
                                     {"hearth_test_hits_total", "Hits.", true, {}, 3},
                                     {"hearth_test_bytes", "Bytes.", false, {{"tier", "disk"}}, 9}};
  });
  const std::string page = metrics.Render();
  EXPECT_TRUE(absl::StrContains(page, "# TYPE hearth_test_bytes gauge\n")) << page;
  EXPECT_TRUE(absl::StrContains(page, "hearth_test_bytes{tier=\"host\"} 7\n")) << page;
  EXPECT_TRUE(absl::StrContains(page, "hearth_test_bytes{tier=\"disk\"} 9\n")) << page;
  EXPECT_TRUE(absl::StrContains(page, "# TYPE hearth_test_hits_total counter\n")) << page;
  EXPECT_EQ(page.find("# TYPE hearth_test_bytes"), page.rfind("# TYPE hearth_test_bytes"));
}

TEST(Metrics, ExternalHistogramsAreRendered) {
  Metrics metrics("hearth_test");
  metrics.AddHistograms([] {
    return std::vector<HistogramSample>{
        {"hearth_test_seconds", "Times.", {{"tier", "disk"}}, {0.1, 1}, {4, 0, 2}, 7.5}};
  });
  const std::string page = metrics.Render();
  EXPECT_TRUE(absl::StrContains(page, "# TYPE hearth_test_seconds histogram\n")) << page;
  for (const char* line :
       {"_count{tier=\"disk\"} 6\n", "_sum{tier=\"disk\"} 7.5\n",
        "_bucket{tier=\"disk\",le=\"0.1\"} 4\n", "_bucket{tier=\"disk\",le=\"1\"} 4\n",
        "_bucket{tier=\"disk\",le=\"+Inf\"} 6\n"}) {
    EXPECT_TRUE(absl::StrContains(page, line)) << line << page;
  }
}

TEST(Metrics, CountsCallsByMethodAndCode) {
  Metrics metrics("hearth_test");
  metrics.RecordCall("Fetch", absl::StatusCode::kOk, 0.003);
  metrics.RecordCall("Fetch", absl::StatusCode::kOk, 0.004);
  metrics.RecordCall("Fetch", absl::StatusCode::kDataLoss, 0.5);
  metrics.RecordGeneration("ttft", 0.2);
  const std::string page = metrics.Render();
  EXPECT_TRUE(
      absl::StrContains(page, "hearth_test_rpc_seconds_count{code=\"OK\",method=\"Fetch\"} 2\n"))
      << page;
  EXPECT_TRUE(absl::StrContains(page, "code=\"DATA_LOSS\",method=\"Fetch\"} 1\n")) << page;
  EXPECT_TRUE(absl::StrContains(page, "hearth_test_generation_seconds_sum{part=\"ttft\"} 0.2"))
      << page;
}

TEST(Metrics, PortZeroPicksFreePort) {
  Metrics metrics("hearth_test");
  absl::StatusOr<std::string> address = metrics.Serve("127.0.0.1:0");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_TRUE(absl::StartsWith(*address, "127.0.0.1:"));
  EXPECT_NE(*address, "127.0.0.1:0");
}

TEST(Metrics, StopFreesThePort) {
  Metrics metrics("hearth_test");
  metrics.Stop();
  absl::StatusOr<std::string> address = metrics.Serve("127.0.0.1:0");
  ASSERT_TRUE(address.ok()) << address.status();
  metrics.Stop();
  metrics.Stop();
  Metrics next("hearth_test");  // can serve on the same port, which is free again
  EXPECT_TRUE(next.Serve(*address).ok());
}

TEST(Metrics, ErrorNamesTakenMetricsAddress) {
  Metrics first("hearth_test"), second("hearth_test");
  absl::StatusOr<std::string> address = first.Serve("127.0.0.1:0");
  ASSERT_TRUE(address.ok()) << address.status();
  absl::StatusOr<std::string> taken = second.Serve(*address);
  ASSERT_FALSE(taken.ok());
  EXPECT_TRUE(absl::StrContains(taken.status().message(), *address)) << taken.status();
}

}  // namespace
}  // namespace hearth
