// The store evicts restore points in the order of its eviction policy, observed through its API.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cache_store/catalog/fingerprint_book.h"
#include "tests/support/stepped_store.h"
#include "tests/support/store_checks.h"

namespace hearth {
namespace {

// Returns the prompt of one turn of a conversation; it continues the previous turn's prompt.
KitPrompt Turn(uint64_t conversation, uint32_t turn) {
  return KitPrompt{KitTokens(conversation, 32 + 32 * turn + 1), {}};
}

class StoreRetention : public SteppedStoreFixture,
                       public ::testing::TestWithParam<RetentionPolicy> {
 protected:
  void Open(uint64_t host_bytes, uint64_t disk_bytes = 0) {
    options_.retention = GetParam();
    options_.host_bytes = host_bytes;
    options_.count_points = false;
    options_.disk_bytes = disk_bytes;
    options_.data_dir = disk_bytes > 0 ? folder_.path() : "";
    SteppedStoreFixture::Open();
  }
  // Acts like a worker: fetches the prompt, then publishes its end and the chunk boundary before.
  uint32_t Ask(const KitPrompt& prompt) {
    clock_.Advance(absl::Seconds(1));
    const uint32_t found = KitFetch(store_.get(), model_, prompt).value();
    const uint32_t end = (static_cast<uint32_t>(prompt.tokens.size()) - 1) / 16 * 16;
    EXPECT_TRUE(KitPublish(store_.get(), model_, prompt, {end - 16, end}).ok());
    executor_->RunAll();
    CheckInvariants(store_.get());
    return found;
  }
  // Opens a store and serves twenty conversations. Returns the bytes that they take on disk.
  uint64_t AskOfTwenty() {
    Open(0, 64 << 20);
    for (uint64_t i = 0; i < 20; ++i) Ask(Turn(i, 1));
    return store_->Stats().tiers.back().bytes;
  }
};

// Every second conversation has a second turn; the others never return.
TEST_P(StoreRetention, DefaultPolicyKeepsReturningPrompts) {
  // The disk has space for about twelve prompts.
  Open(12 * 10 * 256);
  uint64_t returned = 0, asked = 0;
  for (uint64_t i = 0; i < 600; ++i) {
    Ask(Turn(i, i % 2 == 0 ? 3 : 0));  // every second conversation has a long prompt and returns
    if (i % 2 == 0 && i >= 24) {
      ++asked;
      if (Ask(Turn(i - 24, 4)) > 0) ++returned;
    }
  }
  EXPECT_GT(asked, 200u);
  if (GetParam() == RetentionPolicy::kDefault) {
    EXPECT_GT(returned, asked / 10);
  } else {
    EXPECT_LT(returned, asked / 10) << "all that came since has pushed it out";
  }
}

TEST_P(StoreRetention, EndAndPreviousBoundaryAreEvictedTogether) {
  Open(40 * 256);
  for (uint64_t i = 0; i < 40; ++i) Ask(Turn(i, 1));
  size_t alone = 0;
  const std::vector<RestorePoint> points = store_->List("default");
  for (const RestorePoint& point : points) {
    if (point.tokens == 48) ++alone;
    if (point.tokens == 64) --alone;
  }
  EXPECT_GE(points.size(), 2u);
  EXPECT_LE(alone, 1u) << "one may be half gone";
}

TEST_P(StoreRetention, PinnedAndAcknowledgedPointsStay) {
  Open(8 * 10 * 256, 200'000);
  Ask(Turn(1000, 1));
  const Digest pinned = store_->List("default").at(0).id;
  ASSERT_TRUE(store_->SetPinned(pinned, "default", true).ok());
  for (uint64_t i = 0; i < 60; ++i) {
    clock_.Advance(absl::Seconds(1));
    const auto published = KitPublish(store_.get(), model_, Turn(i, 1), {64}, Durability::kDisk);
    ASSERT_TRUE(published.ok());
    EXPECT_EQ(published->durable, Durability::kDisk);
    EXPECT_GT(KitFetch(store_.get(), model_, Turn(i, 1)).value(), 0u) << "just acknowledged";
    executor_->RunAll();
    CheckInvariants(store_.get());
  }
  bool is_there = false;
  for (const RestorePoint& point : store_->List("default")) is_there |= point.id == pinned;
  EXPECT_TRUE(is_there);
}

TEST_P(StoreRetention, RestartEvictsOldestFirst) {
  Open(0, 64 << 20);
  for (uint64_t i = 0; i < 20; ++i) Ask(Turn(i, 1));
  const size_t before = store_->List("default").size();
  const uint64_t used = store_->Stats().tiers.back().bytes;
  store_.reset();
  Open(0, used / 2);
  const size_t after = store_->List("default").size();
  EXPECT_GT(after, 0u);
  EXPECT_LT(after, before);
  EXPECT_GT(KitFetch(store_.get(), model_, Turn(19, 1)).value(), 0u);
  EXPECT_EQ(KitFetch(store_.get(), model_, Turn(0, 1)).value(), 0u);
  CheckInvariants(store_.get());
}

// Both models' prompts have equal bytes and uses; only the cost of computing a token differs.
TEST_P(StoreRetention, PointsOfCostlierModelAreKept) {
  Open(24 * 256 * 4);
  KitModel small, large;
  small.hidden_size = 64;
  large.hidden_size = 1024;
  const Fingerprint models[] = {small.Make(), large.Make()};
  size_t kept[2] = {};
  for (uint64_t i = 0; i < 40; ++i) {
    clock_.Advance(absl::Seconds(1));
    ASSERT_TRUE(KitPublish(store_.get(), models[i % 2], Turn(i, 1), {64}).ok());
  }
  for (const RestorePoint& point : store_->List("default")) {
    ++kept[point.fingerprint == models[1].digest() ? 1 : 0];
  }
  if (GetParam() == RetentionPolicy::kDefault) {
    EXPECT_EQ(kept[0], 0u);
    EXPECT_GT(kept[1], 4u);
  } else {
    EXPECT_LE(kept[1], kept[0] + 1) << "half of each";
  }
}

TEST(ComputeCostTest, ComputeCostComesFromModelFields) {
  const auto steps = [](const Fingerprint& model) {
    return CostStepsOf(MultiplyAddsPerToken(model, model.Layout().value()));
  };
  // Expected multiply-adds per token: 0.1 billion for Gemma 3 270M, and 25.6 billion for 27B.
  const auto gemma = [](uint64_t layers, uint64_t kv_heads, uint64_t head_dim, uint64_t hidden,
                        uint64_t intermediate, uint64_t heads) {
    return Fingerprint::Create({{"chunk_tokens", uint64_t{128}},
                                {"window", uint64_t{512}},
                                {"kv_heads", kv_heads},
                                {"head_dim", head_dim},
                                {"kv_dtype", std::string("bfloat16")},
                                {"exactness", std::string("exact")},
                                {"layer_types", std::string(layers, 'g')},
                                {"object_layout", uint64_t{1}},
                                {"codec", std::string("raw")},
                                {"hidden_size", hidden},
                                {"intermediate_size", intermediate},
                                {"heads", heads}})
        .value();
  };
  const Fingerprint m270 = gemma(18, 1, 256, 640, 2048, 4);
  EXPECT_NEAR(MultiplyAddsPerToken(m270, m270.Layout().value()), 0.1e9, 0.01e9);
  const Fingerprint m27b = gemma(62, 16, 128, 5376, 21504, 32);
  EXPECT_EQ(steps(m27b) - steps(m270), 16) << "256 times";
  KitModel unknown, twice;
  twice.head_dim = 4;
  EXPECT_EQ(steps(twice.Make()) - steps(unknown.Make()), 2) << "as much for each byte";
  KitModel absurd;
  absurd.hidden_size = UINT32_MAX;
  EXPECT_LT(steps(absurd.Make()), 200);
}

// The prompt that was published first is used again much later.
TEST_P(StoreRetention, RestartRemembersLastUse) {
  const uint64_t used = AskOfTwenty();
  clock_.Advance(absl::Hours(1));
  EXPECT_GT(KitFetch(store_.get(), model_, Turn(0, 1)).value(), 0u);
  store_.reset();
  clock_.Advance(absl::Hours(1));
  Open(0, used / 2);
  EXPECT_EQ(store_->List("default").front().age, absl::Hours(1));
  EXPECT_GT(KitFetch(store_.get(), model_, Turn(0, 1)).value(), 0u)
      << "used last, though made first";
  EXPECT_EQ(KitFetch(store_.get(), model_, Turn(1, 1)).value(), 0u);
  EXPECT_GT(KitFetch(store_.get(), model_, Turn(19, 1)).value(), 0u);
  CheckInvariants(store_.get());
}

TEST_P(StoreRetention, KillForgetsOnlyLatestUses) {
  const uint64_t used = AskOfTwenty();
  clock_.Advance(absl::Minutes(2));
  EXPECT_GT(KitFetch(store_.get(), model_, Turn(0, 1)).value(), 0u);
  stepped()->UpkeepStep();
  // Copy the folder before later uses are written, as a kill would leave it.
  std::filesystem::copy(folder_.path(), folder_.path() + ".killed",
                        std::filesystem::copy_options::recursive);
  EXPECT_GT(KitFetch(store_.get(), model_, Turn(1, 1)).value(), 0u);
  store_.reset();
  std::filesystem::remove_all(folder_.path());
  std::filesystem::rename(folder_.path() + ".killed", folder_.path());
  Open(0, used / 2);
  EXPECT_GT(KitFetch(store_.get(), model_, Turn(0, 1)).value(), 0u);
  EXPECT_EQ(KitFetch(store_.get(), model_, Turn(1, 1)).value(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, StoreRetention,
                         ::testing::Values(RetentionPolicy::kDefault, RetentionPolicy::kLru),
                         [](const auto& info) {
                           return info.param == RetentionPolicy::kLru ? "lru" : "default";
                         });

}  // namespace
}  // namespace hearth
