#include "services/store/store_metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "tests/services/store/store_server.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

TEST(StoreMetrics, EachMetricHasOneLabelSet) {
  // If a metric had a sample without labels in addition to its samples by tier, Prometheus would
  // count values twice.
  const TestFolder folder;
  auto store = TieredStore::Open(StoreServer::SmallStore(folder.path()));
  ASSERT_TRUE(store.ok()) << store.status();
  std::map<std::string, std::set<std::string>> labels_of;
  for (const MetricSample& sample : StoreSamples((*store)->Stats())) {
    std::set<std::string> labels;
    for (const auto& [label, value] : sample.labels) labels.insert(label);
    const auto [known, added] = labels_of.emplace(sample.name, labels);
    EXPECT_EQ(known->second, labels) << sample.name;
  }
  EXPECT_EQ(labels_of.count("hearth_store_evicted_restore_points_total"), 1u);
  EXPECT_EQ(labels_of.count("hearth_store_bytes_read_host_total"), 0u) << "read_bytes has it";
  for (const HistogramSample& sample : StoreHistograms((*store)->Stats())) {
    EXPECT_EQ(labels_of.count(sample.name), 0u) << sample.name;
    EXPECT_EQ(sample.counts.size(), sample.bounds.size() + 1);
  }
}

TEST(StoreMetrics, EveryLabelValueIsPresent) {
  const TestFolder folder;
  auto store = TieredStore::Open(StoreServer::SmallStore(folder.path()));
  ASSERT_TRUE(store.ok()) << store.status();
  std::map<std::string, std::set<std::string>> values_of;
  for (const MetricSample& sample : StoreSamples((*store)->Stats())) {
    for (const auto& [label, value] : sample.labels) values_of[sample.name].insert(value);
  }
  for (const HistogramSample& sample : StoreHistograms((*store)->Stats())) {
    for (const auto& [label, value] : sample.labels) values_of[sample.name].insert(value);
  }
  const std::set<std::string> tiers = {"host", "disk"};
  EXPECT_EQ(values_of["hearth_store_unread_bytes_total"], tiers);
  EXPECT_EQ(values_of["hearth_store_slice_read_seconds"], tiers);
  EXPECT_EQ(values_of["hearth_store_publish_commit_seconds"],
            (std::set<std::string>{"memory", "disk", "sync"}));
  EXPECT_EQ(values_of["hearth_store_removed_restore_points_total"],
            (std::set<std::string>{"host_full", "disk_full", "quota", "expired", "dropped",
                                   "quarantined", "lost"}));
}

}  // namespace
}  // namespace hearth
