// Stats: it reports the tiers that were actually read, removal reasons and latencies.
#include <gtest/gtest.h>

#include "cache_store/store/store_seams.h"
#include "tests/support/manual_executor.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

// Bytes of a restore point with chunks of 16 tokens, a window of 24 and the kit's layers: 4 global
// and 2 x 2 local slices of 256 bytes.
constexpr uint64_t kStatsPointBytes = 8 * 256;

class StoreStatsTest : public ::testing::Test {
 protected:
  void Open(uint64_t host_bytes, uint64_t disk_bytes = 1 << 20) {
    store_.reset();
    StoreOptions options;
    options.data_dir = disk_bytes > 0 ? folder_.path() : "";
    options.host_bytes = host_bytes;
    options.count_points = false;
    options.disk_bytes = disk_bytes;
    StoreSeams seams;
    seams.executor = std::make_unique<ManualExecutor>();
    store_ = OpenStore(options, std::move(seams)).value();
  }
  void Publish(uint64_t seed, Durability durability = Durability::kDefault) {
    const auto result = KitPublish(store_.get(), model_, Prompt(seed), {64}, durability);
    ASSERT_TRUE(result.ok()) << result.status();
  }
  static KitPrompt Prompt(uint64_t seed) { return {KitTokens(seed, 65), {}}; }
  void Read(uint64_t seed) { EXPECT_EQ(KitFetch(store_.get(), model_, Prompt(seed)).value(), 64u); }
  void Export(uint64_t seed);
  TierUsage Of(Tier tier) {
    for (const TierUsage& usage : store_->Stats().tiers) {
      if (usage.tier == tier) return usage;
    }
    return {};
  }
  uint64_t Timed(const std::string& name, const std::string& label_value = "") {
    for (const LatencySeries& series : store_->Stats().latencies) {
      if (series.name == name && series.label_value == label_value) return series.counts.count();
    }
    ADD_FAILURE() << "no latency " << name;
    return 0;
  }

  const TestFolder folder_;
  const Fingerprint model_ = KitModel().Make();
  std::unique_ptr<TieredStore> store_;
};

TEST_F(StoreStatsTest, ReadsCountForTierActuallyRead) {
  Open(1 << 20);
  Publish(1);
  Read(1);
  EXPECT_EQ(Of(Tier::kHost).hit_tokens, 64u);
  EXPECT_EQ(Of(Tier::kHost).read_bytes, kStatsPointBytes);
  // Damage one of eight slices in RAM: the plan says RAM, but the slice must be read from disk.
  FlipInRam(store_.get());
  Read(1);
  EXPECT_EQ(Of(Tier::kHost).hit_tokens, 64u);
  EXPECT_EQ(Of(Tier::kDisk).hit_tokens, 64u);
  EXPECT_GT(Of(Tier::kDisk).read_bytes, 0u);
  EXPECT_EQ(Of(Tier::kHost).read_bytes + Of(Tier::kDisk).read_bytes, 2 * kStatsPointBytes);
  EXPECT_EQ(store_->Stats().counters.at("lookup_tokens"), 2 * 65u);
}

TEST_F(StoreStatsTest, FetchWithoutReadsCountsNoTokens) {
  Open(1 << 20);
  Publish(1);
  { auto session = store_->Fetch(KitQuery(model_, Prompt(1)), 0, 0).value(); }
  EXPECT_EQ(store_->Stats().counters.at("hits"), 1u);
  EXPECT_EQ(Of(Tier::kHost).hit_tokens, 0u);
}

// Reads the whole restore point of the prompt `seed`, by its id.
void StoreStatsTest::Export(uint64_t seed) {
  for (const RestorePoint& point : store_->List("default")) {
    if (point.last_token_ids.back() != Prompt(seed).tokens[63]) continue;
    const auto session = store_->FetchById(point.id, "default").value();
    for (size_t i = 0; i < session->plan().objects.size(); ++i) {
      const LookupPlan& plan = session->plan();
      for (uint32_t layer : plan.layout.LayersOf(plan.objects[i].id.group)) {
        ASSERT_TRUE(session->ReadSlice(i, layer).ok());
      }
    }
    return;
  }
  FAIL() << "not stored";
}

TEST_F(StoreStatsTest, ExportDoesNotCountAsHit) {
  Open(2 * kStatsPointBytes);
  Publish(1);
  Publish(2);
  Export(1);
  Export(1);
  const StoreStats stats = store_->Stats();
  EXPECT_EQ(stats.counters.at("exports"), 2u);
  EXPECT_EQ(stats.counters.at("fetches"), 0u);
  EXPECT_EQ(stats.counters.at("hits"), 0u);
  EXPECT_EQ(Of(Tier::kHost).hit_tokens, 0u);
  EXPECT_EQ(Of(Tier::kHost).read_bytes, 2 * kStatsPointBytes);
  EXPECT_EQ(store_->Hottest(1).at(0).hits, 0u);
}

TEST_F(StoreStatsTest, ExportChangesNoTier) {
  Open(2 * kStatsPointBytes);
  Publish(1);
  Publish(2);
  Export(1);  // an export is no use: restore point 1 stays the least recently used
  Publish(3);
  const auto tier_of = [&](uint64_t seed) {
    for (const RestorePoint& point : store_->List("default")) {
      if (point.last_token_ids.back() == Prompt(seed).tokens[63]) return point.tier;
    }
    return Tier::kNone;
  };
  EXPECT_EQ(tier_of(1), Tier::kDisk);
  EXPECT_EQ(tier_of(2), Tier::kHost);
  ASSERT_TRUE(store_->DropAll("default", true).ok());
  Publish(4);
  Open(1 << 20);  // a reopened store has nothing in RAM
  Export(4);
  EXPECT_EQ(tier_of(4), Tier::kDisk);
  EXPECT_EQ(store_->Stats().counters.at("promoted_objects"), 0u);
}

TEST_F(StoreStatsTest, RemovedUnreadBytesAreCounted) {
  Open(kStatsPointBytes);
  Publish(1);
  Read(1);
  Publish(2);  // evicts restore point 1 from RAM; it was never read
  EXPECT_EQ(Of(Tier::kHost).written_bytes, 2 * kStatsPointBytes);
  EXPECT_EQ(Of(Tier::kDisk).written_bytes, 2 * kStatsPointBytes);
  EXPECT_EQ(Of(Tier::kHost).unread_bytes, 0u) << "the one that left was read";
  ASSERT_TRUE(store_->DropAll("default", true).ok());
  EXPECT_EQ(Of(Tier::kHost).unread_bytes, kStatsPointBytes);
  EXPECT_EQ(Of(Tier::kDisk).unread_bytes, 2 * kStatsPointBytes) << "RAM had served the reads";
}

TEST_F(StoreStatsTest, ReopenResetsByteCounts) {
  Open(0);
  Publish(1);
  Open(0);
  ASSERT_TRUE(store_->DropAll("default", true).ok());
  EXPECT_EQ(Of(Tier::kDisk).written_bytes, 0u);
  EXPECT_EQ(Of(Tier::kDisk).unread_bytes, 0u);
}

TEST_F(StoreStatsTest, RemovalsAreCountedByReason) {
  Open(kStatsPointBytes, 0);
  Publish(1);
  Publish(2);
  ASSERT_TRUE(store_->DropAll("default", true).ok());
  const auto removed = store_->Stats().removed;
  EXPECT_EQ(removed.size(), kRemovals);
  EXPECT_EQ(removed.at("host_full"), 1u);
  EXPECT_EQ(removed.at("dropped"), 1u);
  EXPECT_EQ(removed.at("disk_full"), 0u);
}

TEST_F(StoreStatsTest, LatenciesAreRecordedPerCall) {
  Open(1 << 20);
  Publish(1, Durability::kMemory);
  Publish(2, Durability::kSync);
  Read(2);
  Read(2);
  KitFetch(store_.get(), model_, Prompt(9)).value();
  EXPECT_EQ(Timed("lookup"), 3u);
  EXPECT_EQ(Timed("slice_read", "host"), 16u);
  EXPECT_EQ(Timed("slice_read", "disk"), 0u);
  EXPECT_EQ(Timed("publish_commit", "memory"), 1u);
  EXPECT_EQ(Timed("publish_commit", "disk"), 0u);
  EXPECT_EQ(Timed("publish_commit", "sync"), 1u);
}

TEST(LatencyHistogram, TimesFallIntoBuckets) {
  LatencyHistogram histogram;
  histogram.Observe(
      std::chrono::microseconds(10));  // equal to the first bound, so it counts in the first bucket
  histogram.Observe(std::chrono::microseconds(11));
  histogram.Observe(std::chrono::seconds(11));
  const LatencyCounts counts = histogram.Read();
  EXPECT_EQ(counts.counts.front(), 1u);
  EXPECT_EQ(counts.counts[1], 1u);
  EXPECT_EQ(counts.counts.back(), 1u);
  EXPECT_EQ(counts.count(), 3u);
  EXPECT_NEAR(counts.sum_s, 11.000021, 1e-9);
}

}  // namespace
}  // namespace hearth
