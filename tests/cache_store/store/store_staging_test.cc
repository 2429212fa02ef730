// The memory of publishes that are being received is counted before it is allocated, whatever the
// sender does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cache_store/base/staged_bytes.h"
#include "tests/support/store_kit.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kStagedTokens = 64;

class StagingTest : public testing::Test {
 protected:
  void Open(uint64_t max_staged_bytes, const TenantQuotas& quotas = {}) {
    StoreOptions options;
    options.host_bytes = 1 << 20;
    options.max_staged_bytes = max_staged_bytes;
    options.quotas = quotas;
    store_ = TieredStore::Open(options).value();
  }
  PublishSpec Spec(uint64_t seed, const std::string& tenant = "default") const {
    return KitSpec(model_, {KitTokens(seed, kStagedTokens), {}, tenant}, {kStagedTokens});
  }
  size_t SliceBytes() const { return model_.Layout()->SliceBytes(16); }
  // Returns the bytes of all slices of a publish of this test.
  uint64_t WholeBytes() const {
    uint64_t bytes = 0;
    for (const PublishObject& object : Spec(1).objects) {
      bytes += object.slice_digests.size() * model_.Layout()->SliceBytes(object.id.tokens);
    }
    return bytes;
  }

  const Fingerprint model_ = KitModel().Make();
  std::unique_ptr<TieredStore> store_;
};

// Many publishes, with objects of which only some slices are sent, take memory before any object is
// complete.
TEST_F(StagingTest, AllocatedBytesStayWithinLimit) {
  const uint64_t limit = WholeBytes() + SliceBytes() / 2;
  Open(limit);
  std::vector<std::unique_ptr<PublishSession>> sessions;
  std::vector<std::shared_ptr<std::byte>> slices;
  int refused = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    sessions.push_back(store_->Publish(Spec(seed)).value());
    auto slice = sessions.back()->AllocateSlice(SliceBytes());
    if (slice.ok()) {
      slices.push_back(*std::move(slice));
      continue;
    }
    ++refused;
    EXPECT_EQ(slice.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(slice.status().message()), HasSubstr("max_staged_bytes"));
  }
  EXPECT_EQ(slices.size(), limit / SliceBytes());
  EXPECT_GT(refused, 0);
  EXPECT_LE(store_->Stats().most_staged_bytes, limit);
  EXPECT_EQ(store_->Stats().counters.at("publishes_refused_staged"),
            static_cast<uint64_t>(refused));
  sessions.clear();
  EXPECT_EQ(store_->Stats().staged_bytes, 0u);
  EXPECT_TRUE(
      KitPublish(store_.get(), model_, {KitTokens(500, kStagedTokens), {}}, {kStagedTokens}).ok());
}

TEST_F(StagingTest, AllocatedSliceCountsOnce) {
  Open(WholeBytes());
  const KitPrompt prompt{KitTokens(1, kStagedTokens), {}};
  const PublishSpec spec = Spec(1);
  const auto session = store_->Publish(spec).value();
  for (const uint32_t i : session->needed()) {
    const ObjectId& id = spec.objects[i].id;
    for (const uint32_t layer : model_.Layout()->LayersOf(id.group)) {
      const SliceView from = KitSlice(model_, prompt, id, layer);
      const auto room = session->AllocateSlice(from.bytes.size());
      ASSERT_TRUE(room.ok()) << room.status();
      std::memcpy(room->get(), from.bytes.data(), from.bytes.size());
      ASSERT_TRUE(session->PutSlice(i, layer, {*room, {room->get(), from.bytes.size()}}).ok());
    }
  }
  EXPECT_EQ(store_->Stats().staged_bytes, WholeBytes());
  EXPECT_TRUE(session->Commit().ok());
}

TEST_F(StagingTest, WrongDigestFromCallerIsRefused) {
  Open(2 * WholeBytes());
  const KitPrompt prompt{KitTokens(1, kStagedTokens), {}};
  const PublishSpec spec = Spec(1);
  for (const bool is_right : {false, true}) {
    const auto session = store_->Publish(spec).value();
    for (const uint32_t i : session->needed()) {
      const ObjectId& id = spec.objects[i].id;
      for (const uint32_t layer : model_.Layout()->LayersOf(id.group)) {
        const SliceView slice = KitSlice(model_, prompt, id, layer);
        const uint64_t digest = SliceDigest(slice.bytes.data(), slice.bytes.size());
        const absl::Status put = session->PutSlice(i, layer, slice, is_right ? digest : digest ^ 1);
        EXPECT_TRUE(is_right ? put.ok() : absl::IsDataLoss(put)) << put;
      }
    }
    EXPECT_EQ(session->Commit().value().boundaries.empty(), !is_right);
  }
  const KitPrompt longer{KitTokens(1, kStagedTokens + 1), {}};
  EXPECT_EQ(KitFetch(store_.get(), model_, longer).value(), kStagedTokens);
}

TEST_F(StagingTest, QuotaIsCheckedBeforeSlicesArrive) {
  TenantQuotas quotas;
  quotas.by_tenant["b"].max_bytes = WholeBytes() - 1;
  Open(1 << 20, quotas);
  const auto refused = store_->Publish(Spec(1, "b"));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("quota: "));
  EXPECT_EQ(store_->Stats().counters.at("publishes_refused_quota"), 1u);
  EXPECT_TRUE(store_->Publish(Spec(1, "a")).ok());
}

TEST_F(StagingTest, StagedBytesRespectQuota) {
  TenantQuotas quotas;
  quotas.by_tenant["b"].max_bytes = WholeBytes();
  Open(1 << 20, quotas);
  std::vector<std::unique_ptr<PublishSession>> sessions;
  std::vector<std::shared_ptr<std::byte>> slices;
  absl::Status last;
  for (uint64_t seed = 1; seed <= 100 && last.ok(); ++seed) {
    sessions.push_back(store_->Publish(Spec(seed, "b")).value());
    auto slice = sessions.back()->AllocateSlice(SliceBytes());
    last = slice.status();
    if (slice.ok()) slices.push_back(*std::move(slice));
  }
  EXPECT_THAT(std::string(last.message()), HasSubstr("quota: "));
  EXPECT_LE(store_->Stats().most_staged_bytes, WholeBytes());
  EXPECT_TRUE(store_->Publish(Spec(1, "a")).value()->AllocateSlice(SliceBytes()).ok());
}

// Publishes without slices would otherwise leave an entry for each tenant.
TEST(StagedBytesTest, TenantWithoutBytesIsForgotten) {
  StagedBytes staged(1);
  ASSERT_TRUE(staged.Reserve("a", 0, 0).ok());
  // StagedBytes asserts that without bytes no tenant has an entry.
  EXPECT_TRUE(staged.Reserve("b", 1, 0).ok());
  staged.Release("b", 1);
}

TEST_F(StagingTest, LargeAnnouncementCountsAsStaged) {
  Open(kMiB);
  const auto announce = [&](uint64_t seed) {
    return store_->Publish(KitSpec(model_, {KitTokens(seed, 16000), {}}, {16000}));
  };
  auto first = announce(1);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_GT(store_->Stats().staged_bytes, 64000u + 1000u * sizeof(PublishObject));
  std::vector<std::unique_ptr<PublishSession>> open;
  absl::StatusOr<std::unique_ptr<PublishSession>> next = announce(2);
  for (uint64_t seed = 3; next.ok() && seed < 20; next = announce(seed++)) {
    open.push_back(*std::move(next));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(next.status())) << next.status();
  open.clear();
  first->reset();
  EXPECT_EQ(store_->Stats().staged_bytes, 0u);
}

}  // namespace
}  // namespace hearth
