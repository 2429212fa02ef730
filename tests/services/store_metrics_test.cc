#include "services/store_metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "tests/services/store_server.h"

namespace hearth {
namespace {

TEST(StoreMetrics, GivesEachNameOneSetOfLabels) {
  // Prometheus would sum a series without labels and its parts by tier: everything counted twice.
  auto store = TieredStore::Open(StoreServer::SmallStore(testing::TempDir() + "store_metrics"));
  ASSERT_TRUE(store.ok()) << store.status();
  std::map<std::string, std::set<std::string>> labels_of;
  for (const MetricSample& sample : StoreSamples((*store)->Stats())) {
    std::set<std::string> labels;
    for (const auto& [label, value] : sample.labels) labels.insert(label);
    const auto [known, added] = labels_of.emplace(sample.name, labels);
    EXPECT_EQ(known->second, labels) << sample.name;
  }
  EXPECT_EQ(labels_of.count("hearth_store_evicted_restore_points_total"), 1u);
}

}  // namespace
}  // namespace hearth
