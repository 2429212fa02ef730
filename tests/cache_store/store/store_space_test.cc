// The disk tier's files stay near its limit after evictions, and closing the store does not wait
// for a reclaim.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "cache_store/store/store_core.h"
#include "tests/support/stepped_store.h"

namespace hearth {
namespace {

class StoreSpace : public SteppedStoreFixture, public ::testing::Test {
 protected:
  StoreSpace() { model_ = LargeModel(); }
  void Open(uint64_t disk_bytes, uint64_t host_bytes = 0) {
    options_.host_bytes = host_bytes;
    options_.count_points = false;
    options_.disk_bytes = disk_bytes;
    SteppedStoreFixture::Open();
  }
  // Closes the store; after that, RocksDB has deleted all unused files.
  void Close() { store_.reset(); }
  void Publish(uint64_t seed) {
    const absl::Status published = SteppedStoreFixture::Publish(seed);
    ASSERT_TRUE(published.ok()) << published;
    ASSERT_LE(store_->Stats().tiers.at(1).bytes, options_.disk_bytes);
    executor_->RunAll();
  }
  uint64_t FileBytes() {
    uint64_t bytes = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder_.path())) {
      if (file.is_regular_file() && file.path().filename() != "reserve") bytes += file.file_size();
    }
    return bytes;
  }
  // Returns weak pointers to all copies of objects in RAM.
  std::vector<std::weak_ptr<const std::vector<SliceView>>> RamCopies() {
    StoreCore* const core = stepped()->core();
    StoreLock lock(core);
    std::vector<std::weak_ptr<const std::vector<SliceView>>> copies;
    for (const auto& object : core->objects.all()) {
      if (object->in_host()) copies.push_back(object->host);
    }
    return copies;
  }
};

// Returns the largest expected size of the files: the limit, 1/8 of it for erased bytes next to
// live bytes, 1/16 for bytes that are not reclaimed yet, 1/16 for the log, and less than a MiB of
// tables and settings.
uint64_t MostFileBytes(uint64_t disk_bytes) {
  return disk_bytes + disk_bytes / 8 + disk_bytes / 16 + disk_bytes / 16 + kMiB;
}

TEST_F(StoreSpace, PublishesBeyondLimitEvictAndReclaim) {
  Open(32 * kMiB);
  for (uint64_t seed = 0; seed < 100; ++seed) Publish(seed);
  EXPECT_GT(store_->Stats().counters.at("evicted_restore_points"), 70u);
  EXPECT_EQ(Fetch(0), 0u);
  EXPECT_EQ(Fetch(99), 64u);
  Close();
  EXPECT_LT(FileBytes(), MostFileBytes(32 * kMiB));
}

TEST_F(StoreSpace, ReclaimMovesLivePoints) {
  Open(32 * kMiB);
  // Eight prompts are used again and again, so that every file has live bytes.
  std::vector<uint64_t> used;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Publish(seed);
    if (seed % 10 == 0 && used.size() < 8) used.push_back(seed);
    for (const uint64_t old : used) ASSERT_EQ(Fetch(old), 64u) << old << " after " << seed;
  }
  Close();
  EXPECT_LT(FileBytes(), MostFileBytes(32 * kMiB));
  Open(32 * kMiB);
  for (const uint64_t old : used) EXPECT_EQ(Fetch(old), 64u) << "moved, and still there";
}

// 100 prompts of six chunks after a common system prompt of two chunks, each fetched again. With
// space for all, every fetch is a full hit. With space for 20, the last prompts are full hits, and
// the system prompt is always a hit.
TEST_F(StoreSpace, SharedSystemPromptSurvivesEviction) {
  constexpr uint64_t kPrompts = 100;
  const uint32_t chunk = model_.Layout()->chunk_tokens;
  const uint32_t system = 2 * chunk, whole = 8 * chunk;
  const auto prompt_of = [&](uint64_t seed) {
    KitPrompt prompt{KitTokens(1, system), {}};
    const std::vector<uint32_t> own = KitTokens(100 + seed, whole + 1 - system);
    prompt.tokens.insert(prompt.tokens.end(), own.begin(), own.end());
    return prompt;
  };
  const auto run = [&](uint64_t disk_bytes) {
    Open(disk_bytes);
    for (uint64_t seed = 0; seed < kPrompts; ++seed) {
      const absl::Status stored =
          KitPublish(store_.get(), model_, prompt_of(seed), {system, whole}, Durability::kDisk)
              .status();
      EXPECT_TRUE(stored.ok()) << stored;
      executor_->RunAll();
    }
    std::pair<uint64_t, uint64_t> hits;  // full hits, hits of only the system prompt
    for (uint64_t seed = 0; seed < kPrompts; ++seed) {
      const uint32_t usable = KitFetch(store_.get(), model_, prompt_of(seed)).value_or(0);
      hits.first += usable == whole ? 1 : 0;
      hits.second += usable >= system ? 1 : 0;
    }
    return hits;
  };
  const auto all = run(uint64_t{1} << 30);
  EXPECT_EQ(all, std::make_pair(kPrompts, kPrompts));
  const uint64_t all_bytes = store_->Stats().tiers.at(1).bytes;
  Close();
  std::filesystem::remove_all(folder_.path() + "/db");
  const uint64_t disk_bytes = all_bytes / 5;
  const auto some = run(disk_bytes);
  EXPECT_GE(some.first, 18u);
  EXPECT_EQ(some.second, kPrompts) << "the system prompt went";
  Close();
  EXPECT_LT(FileBytes(), MostFileBytes(disk_bytes));
}

TEST_F(StoreSpace, SmallerLimitReclaimsAtStart) {
  Open(64 * kMiB);
  for (uint64_t seed = 0; seed < 20; ++seed) Publish(seed);
  Open(8 * kMiB);
  executor_->RunAll();
  Close();
  EXPECT_LT(FileBytes(), MostFileBytes(8 * kMiB));
}

TEST_F(StoreSpace, RestartReclaimsErasedSpace) {
  Open(64 * kMiB);
  for (uint64_t seed = 0; seed < 20; ++seed) Publish(seed);
  ASSERT_TRUE(store_->DropAll("default", false).ok());
  Close();  // the store closes before the job has run
  EXPECT_GT(FileBytes(), 30 * kMiB);
  Open(64 * kMiB);
  executor_->RunAll();
  Close();
  EXPECT_LT(FileBytes(), kMiB);
}

TEST_F(StoreSpace, StoppedDiskTierReclaimsNothing) {
  const auto tier = DiskTier::Open(folder_.path(), "secret").value();
  EXPECT_TRUE(tier->ReclaimSpace(0).ok());
  tier->StopReclaiming();
  tier->StopReclaiming();
  EXPECT_TRUE(absl::IsCancelled(tier->ReclaimSpace(0)));
}

TEST_F(StoreSpace, StopReclaimingEndsRunningReclaim) {
  const auto tier = DiskTier::Open(folder_.path(), "secret").value();
  const SliceView view = KitSlice(model_, Prompt(1), {0, 16, LayerGroup::kLocal}, 0);
  for (uint64_t object = 1; object <= 40; ++object) {
    ASSERT_TRUE(tier->WriteAll({{{object, 0, view.bytes.size(), 0}, view}}).ok());
  }
  absl::Notification began;
  absl::Status ended;
  std::thread reclaiming([&] {
    ended = tier->ReclaimSpace(0);
    began.Notify();
    while (ended.ok()) ended = tier->ReclaimSpace(0);
  });
  began.WaitForNotification();
  tier->StopReclaiming();
  reclaiming.join();
  EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
}

TEST_F(StoreSpace, EvictedRamCopiesAreFreedImmediately) {
  Open(64 * kMiB, 2 * kMiB);
  Publish(3);
  Open(64 * kMiB, store_->List("default").at(0).bytes);  // RAM for one restore point
  Publish(1);
  const auto first = RamCopies();
  ASSERT_FALSE(first.empty());
  ASSERT_TRUE(KitPublish(store_.get(), model_, Prompt(2), {64}).ok());
  const auto second = RamCopies();
  ASSERT_FALSE(second.empty());
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(first[i].expired()) << i;
  // Fetching the first restore point promotes it to RAM, which evicts the second from RAM.
  executor_->RunAll();
  EXPECT_EQ(Fetch(1), 64u);
  executor_->RunAll();
  ASSERT_GT(store_->Stats().counters.at("promoted_objects"), 0u);
  for (size_t i = 0; i < second.size(); ++i) EXPECT_TRUE(second[i].expired()) << i;
}

}  // namespace
}  // namespace hearth
