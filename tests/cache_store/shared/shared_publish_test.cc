// Publishes to stores that share an engine: when a publish is acknowledged, and what delays it.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/cache_store/shared/shared_kit.h"

namespace hearth {
namespace {

using SharedPublishTest = SharedStoreTest;

TEST_F(SharedPublishTest, OnlySharedDurabilityWaitsForEngine) {
  SharedNode one = kit_.Node();
  auto result = KitPublish(one.store.get(), model_, Prompt(1), {64});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->durable, Durability::kMemory);
  EXPECT_EQ(Heads(), 0);
  result = KitPublish(one.store.get(), model_, Prompt(2), {64}, Durability::kShared);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->durable, Durability::kShared);
  EXPECT_EQ(Heads(), 6);
  const LatencySeries timed = one.store->Stats().latencies.back();
  EXPECT_EQ(timed.name + " " + timed.label_value, "publish_commit shared");
  EXPECT_EQ(timed.counts.count(), 1u);
  one.engine->SetFull(true);
  result = KitPublish(one.store.get(), model_, Prompt(3), {64}, Durability::kShared);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->durable, Durability::kMemory);
  ASSERT_FALSE(result->notes.empty());
  EXPECT_EQ(Heads(), 6);
}

TEST_F(SharedPublishTest, AsyncCommitBlocksNoThread) {
  SharedNode one = kit_.Node();
  const auto commit = [&](uint64_t seed, Durability durability) {
    PublishSpec spec = KitSpec(model_, Prompt(seed), {64});
    spec.durability = durability;
    auto session = one.store->Publish(spec).value();
    EXPECT_TRUE(KitPutAll(session.get(), spec, model_, Prompt(seed)).ok());
    auto result = std::make_shared<std::optional<PublishResult>>();
    session->CommitThen([result](const auto& done) { *result = done.value(); });
    return result;
  };
  EXPECT_TRUE(commit(1, Durability::kMemory)->has_value());
  const auto shared = commit(2, Durability::kShared);
  EXPECT_FALSE(shared->has_value());
  EXPECT_EQ(Heads(), 0);
  one.waits->RunAll();  // the write ends after the session was destroyed
  ASSERT_TRUE(shared->has_value());
  EXPECT_EQ((*shared)->durable, Durability::kShared);
  EXPECT_EQ(Heads(), 6);
  one.waits->SetFull(true);
  const auto refused = commit(3, Durability::kShared);
  ASSERT_TRUE(refused->has_value());
  EXPECT_EQ((*refused)->durable, Durability::kMemory);
  EXPECT_EQ((*refused)->notes.back(),
            "the restore points are not in the shared tier: too many publishes wait for the shared "
            "tier; try again later");
  EXPECT_EQ(one.Of(Counter::kSharedWritesSkipped), 1);
}

TEST_F(SharedPublishTest, PublishNotesMissingSharedTier) {
  StoreOptions options;
  options.data_dir = kit_.folder.path() + "/alone";
  ManualExecutor* jobs = nullptr;
  const auto store = OpenStore(options, SteppedSeams(&jobs)).value();
  const auto result = KitPublish(store.get(), model_, Prompt(1), {64}, Durability::kShared);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->durable, Durability::kDisk);
  EXPECT_EQ(result->notes, std::vector<std::string>{"no shared tier: kept in this store only"});
}

TEST_F(SharedPublishTest, FullQueueSkipsEngineWrite) {
  SharedNode one = kit_.Node();
  one.writes->SetFull(true);
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Heads(), 0);
  EXPECT_EQ(one.Of(Counter::kSharedWritesSkipped), 1);
}

}  // namespace
}  // namespace hearth
