// Objects that are read from disk are promoted to RAM in the background: only whole objects, within
// a limit, and never in place of objects that are only in RAM.
#include <gtest/gtest.h>

#include "tests/support/stepped_store.h"
#include "tests/support/store_checks.h"

namespace hearth {
namespace {

// With chunks of 16 tokens, a window of 24 and the kit's layers, 64 tokens are 4 global objects of
// one slice of 256 bytes, and 2 local objects of two slices.
constexpr uint64_t kPointBytes = 8 * 256;
constexpr size_t kPointObjects = 6;

class StorePromotion : public SteppedStoreFixture, public ::testing::Test {
 protected:
  void Open(uint64_t host_bytes, uint64_t max_background_bytes = 1 << 20) {
    options_.host_bytes = host_bytes;
    options_.count_points = false;
    options_.disk_bytes = 1 << 20;
    options_.max_background_bytes = max_background_bytes;
    SteppedStoreFixture::Open();
  }
  void Publish(uint64_t seed, Durability durability = Durability::kDisk) {
    const absl::Status published = SteppedStoreFixture::Publish(seed, durability);
    ASSERT_TRUE(published.ok()) << published;
  }
  std::unique_ptr<FetchSession> Fetch(uint64_t seed) {
    return store_->Fetch(KitQuery(model_, Prompt(seed)), 0, 0).value();
  }
  void ReadObjects(FetchSession* session, size_t count) {
    const KvLayout layout = model_.Layout().value();
    for (size_t i = 0; i < count; ++i) {
      for (const uint32_t layer : layout.LayersOf(session->plan().objects[i].id.group)) {
        ASSERT_TRUE(session->ReadSlice(i, layer).ok());
      }
    }
  }
  void ReadAll(uint64_t seed) {
    EXPECT_TRUE(KitReadAll(Fetch(seed).get(), model_, Prompt(seed)).ok());
  }
  size_t ObjectsInRam(uint64_t seed) {
    size_t count = 0;
    const auto session = Fetch(seed);
    for (const PlannedObject& object : session->plan().objects) {
      if (object.tier == Tier::kHost) ++count;
    }
    return count;
  }
  uint64_t HostBytes() { return store_->Stats().tiers.at(0).bytes; }
  void RunTasksAndCheck() {
    executor_->RunAll();
    CheckInvariants(store_.get());
  }
};

TEST_F(StorePromotion, PartialFetchPromotesOnlyWholeObjects) {
  Open(4 * kPointBytes);
  for (uint64_t seed = 1; seed <= 5; ++seed) Publish(seed);
  ASSERT_EQ(Counted("demoted_objects"), kPointObjects);
  ASSERT_EQ(ObjectsInRam(1), 0u);
  {
    const auto session = Fetch(1);
    ReadObjects(session.get(), 2);
    EXPECT_EQ(Counted("demoted_objects"), kPointObjects) << "not on the reader's path";
  }
  RunTasksAndCheck();
  EXPECT_EQ(Counted("demoted_objects"), kPointObjects + 2) << "as many as made room";
  EXPECT_EQ(ObjectsInRam(1), 2u);
  EXPECT_EQ(Counted("promoted_objects"), 2u);
  // The next fetch reads the promoted objects from RAM, and only the others from disk.
  const uint64_t before = Counted("bytes_read_disk");
  ReadAll(1);
  EXPECT_EQ(Counted("bytes_read_disk") - before, kPointBytes - 2 * 256);
  RunTasksAndCheck();
  EXPECT_EQ(ObjectsInRam(1), kPointObjects);
  EXPECT_EQ(Counted("promoted_objects"), kPointObjects);
  EXPECT_EQ(Counted("demoted_objects"), 2 * kPointObjects);
  EXPECT_EQ(Counted("promotions_skipped"), 0u);
}

TEST_F(StorePromotion, FetchWithoutReadsEvictsNothing) {
  Open(kPointBytes);
  Publish(1);
  Publish(2);
  for (int i = 0; i < 3; ++i) Fetch(1);
  // An object of which only one slice was read is not promoted.
  { ASSERT_TRUE(Fetch(1)->ReadSlice(kPointObjects - 1, 0).ok()); }
  RunTasksAndCheck();
  EXPECT_EQ(ObjectsInRam(2), kPointObjects);
  EXPECT_EQ(HostBytes(), kPointBytes);
  ReadAll(1);
  RunTasksAndCheck();
  EXPECT_EQ(ObjectsInRam(1), kPointObjects) << "nothing was left claimed";
}

TEST_F(StorePromotion, PartlyPromotedPointCanBeDemoted) {
  Open(2 * kPointBytes);
  for (uint64_t seed = 1; seed <= 3; ++seed) Publish(seed);
  ReadObjects(Fetch(1).get(), 2);
  RunTasksAndCheck();
  ASSERT_EQ(ObjectsInRam(1), 2u);
  for (uint64_t seed = 4; seed <= 7; ++seed) Publish(seed);
  RunTasksAndCheck();
  EXPECT_EQ(ObjectsInRam(1), 0u);
  EXPECT_EQ(HostBytes(), 2 * kPointBytes);
}

TEST_F(StorePromotion, PromotionKeepsRamOnlyPoints) {
  Open(2 * kPointBytes);
  Publish(1);
  executor_->SetFull(true);  // the next publishes stay only in RAM
  Publish(2, Durability::kMemory);
  Publish(3, Durability::kMemory);
  executor_->SetFull(false);
  ReadAll(1);
  RunTasksAndCheck();
  EXPECT_EQ(Counted("promotions_skipped"), kPointObjects);
  EXPECT_EQ(Counted("evicted_restore_points"), 0u);
  EXPECT_EQ(ObjectsInRam(1), 0u);
  EXPECT_EQ(ObjectsInRam(2), kPointObjects);
  EXPECT_EQ(ObjectsInRam(3), kPointObjects);
}

TEST_F(StorePromotion, RamFullOfHeldObjectsSkipsPromotion) {
  Open(2 * kPointBytes);
  for (uint64_t seed = 1; seed <= 3; ++seed) Publish(seed);
  ReadAll(1);
  // these sessions hold the objects in RAM while the job needs space
  const auto second = Fetch(2), third = Fetch(3);
  RunTasksAndCheck();
  EXPECT_EQ(Counted("promotions_skipped"), kPointObjects);
  EXPECT_EQ(ObjectsInRam(1), 0u);
  EXPECT_EQ(ObjectsInRam(2), kPointObjects);
}

TEST_F(StorePromotion, QueuedPromotionsAreLimited) {
  Open(4 * kPointBytes, 2 * 256);
  Publish(1);
  Open(4 * kPointBytes, 2 * 256);
  ReadAll(1);  // the promotions are queued; no job has run yet
  EXPECT_EQ(Counted("promotions_skipped"), kPointObjects - 2);
  RunTasksAndCheck();
  EXPECT_EQ(ObjectsInRam(1), 2u);
  ReadAll(1);
  RunTasksAndCheck();
  EXPECT_EQ(ObjectsInRam(1), 4u) << "what was taken in waits no longer";
}

TEST_F(StorePromotion, FullQueueSkipsPromotion) {
  Open(4 * kPointBytes);
  Publish(1);
  Open(4 * kPointBytes);
  executor_->SetFull(true);
  ReadAll(1);
  executor_->SetFull(false);
  EXPECT_EQ(Counted("promotions_skipped"), kPointObjects);
  RunTasksAndCheck();
  EXPECT_EQ(ObjectsInRam(1), 0u);
  ReadAll(1);
  RunTasksAndCheck();
  EXPECT_EQ(ObjectsInRam(1), kPointObjects);
}

TEST_F(StorePromotion, DroppedPointIsNotPromoted) {
  Open(4 * kPointBytes);
  Publish(1);
  Open(4 * kPointBytes);
  ReadAll(1);
  ASSERT_EQ(store_->DropAll("default", true)->dropped, 1u);
  RunTasksAndCheck();
  EXPECT_EQ(HostBytes(), 0u);
  EXPECT_EQ(store_->Stats().objects, 0u);
}

TEST_F(StorePromotion, ConcurrentReadersPromoteOnce) {
  Open(4 * kPointBytes);
  Publish(1);
  Open(4 * kPointBytes);
  {
    const auto first = Fetch(1), second = Fetch(1);
    ReadObjects(first.get(), 3);
    ReadObjects(second.get(), kPointObjects);
    ReadObjects(first.get(), kPointObjects);
  }
  RunTasksAndCheck();
  EXPECT_EQ(ObjectsInRam(1), kPointObjects);
  EXPECT_EQ(HostBytes(), kPointBytes);
  EXPECT_EQ(Counted("promoted_objects"), kPointObjects);
}

TEST_F(StorePromotion, ClosingStoreFinishesQueuedPromotions) {
  StoreOptions options;
  options.data_dir = folder_.path();
  options.host_bytes = options.disk_bytes = 1 << 20;
  for (int i = 0; i < 2; ++i) {
    const auto store = TieredStore::Open(options).value();
    ASSERT_TRUE(KitPublish(store.get(), model_, Prompt(1), {64}, Durability::kDisk).ok());
    EXPECT_EQ(KitFetch(store.get(), model_, Prompt(1)).value(), 64u);
    if (i == 0) continue;
    EXPECT_EQ(store->DropAll("default", true)->dropped, 1u);
  }
}

}  // namespace
}  // namespace hearth
