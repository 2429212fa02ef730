// A start recovers all restore points on disk, except expired and incomplete restore points, and
// restore points above the limit.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "cache_store/disk/stored_records.h"
#include "tests/cache_store/store/store_start_kit.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/raw_database.h"

namespace hearth {
namespace {

// A model without local layers: every chunk boundary of a stored prompt can be restored.
Fingerprint GlobalModel() {
  KitModel global;
  global.layer_types = "ggg";
  return global.Make();
}

// The folder has two manifests of a restore point, as after a crash between the write of a manifest
// and the erase of the replaced one.
TEST_F(StoreStart, NewerManifestReplacesOlder) {
  Fill();
  DuplicateManifest(0);
  Open();
  executor_->RunAll();
  ExpectAllThere();
  EXPECT_EQ(Counted("recovery_dropped_manifests"), 0u) << "it was replaced";
  store_.reset();
  RawDatabase raw(folder_);
  const auto all = raw.All("manifests");
  EXPECT_EQ(all.size(), kPrompts);
  EXPECT_EQ(all.back().first, NumberKey(kDuplicate));
}

// Any one read of the records may fail.
TEST_F(StoreStart, FailedRecordReadLosesNothing) {
  Fill();
  { RawDatabase flushes(folder_); }
  int read_later = 0;
  for (int nth = 1; nth < 60; ++nth) {
    FaultyDisk disk;
    disk.Arm(DiskFault::kFailedRead, nth);
    store_.reset();
    StoreSeams seams = SteppedSeams(&executor_, &clock_);
    seams.disk.env = disk.env();
    auto opened = OpenStore(Options(), std::move(seams));
    if (!opened.ok() || disk.struck() == 0) continue;
    store_ = *std::move(opened);
    // this failure looked like damage of a file (damage_test.cc)
    const bool is_damage = Counted("recovery_damage") > 0;
    if (!is_damage) {
      ExpectAllThere();
      EXPECT_EQ(Counted("recovery_dropped_manifests"), 0u) << nth;
      ++read_later;
    }
    executor_->RunAll();
    store_.reset();
    if (is_damage) break;
  }
  EXPECT_GT(read_later, 0);
}

TEST_F(StoreStart, SmallerDiskLimitEvictsAtStart) {
  Fill();
  Open(nullptr, 100'000);
  const TierUsage disk = store_->Stats().tiers.at(1);
  EXPECT_LE(disk.bytes, 100'000u);
  EXPECT_GT(store_->Stats().restore_points, 5u);
  EXPECT_LT(store_->Stats().restore_points, kPrompts);
  EXPECT_LT(Fetch(0), kLast) << "the oldest";
}

// A start also loads expired restore points, which must not hide others that share their objects.
TEST_F(StoreStart, ExpiredPointHidesNoLivePoint) {
  const Fingerprint model = GlobalModel();
  const KitPrompt asked{KitTokens(5, 250), {}};
  KitPrompt other = asked;
  for (size_t i = 48; i < other.tokens.size(); ++i) ++other.tokens[i];
  {
    Open();
    ASSERT_TRUE(KitPublish(store_.get(), model, other, {80}).ok());
    std::vector<uint32_t> boundaries;
    for (uint32_t end = 64; end <= 240; end += 16) boundaries.push_back(end);
    PublishSpec spec = KitSpec(model, asked, boundaries);
    spec.ttl = absl::Seconds(1);
    auto session = store_->Publish(spec).value();
    ASSERT_TRUE(KitPutAll(session.get(), spec, model, asked).ok());
    ASSERT_TRUE(session->Commit().ok());
  }
  clock_.Advance(absl::Now() + absl::Minutes(2) - clock_.Now());
  Open();
  EXPECT_EQ(store_->Explain(KitQuery(model, asked)).value().usable_tokens, 48u);
  Open();
  EXPECT_EQ(KitFetch(store_.get(), model, asked).value(), 48u);
}

// In a damaged folder, the longest restore point has lost its last object. The shorter restore
// point must still be found.
TEST_F(StoreStart, DamagedPointHidesNoShorterPoint) {
  const Fingerprint model = GlobalModel();
  const KitPrompt longest{KitTokens(5, 100), {}};
  KitPrompt asked = longest;  // this prompt ends before both restore points
  asked.tokens.resize(49);
  {
    Open();
    ASSERT_TRUE(KitPublish(store_.get(), model, longest, {80}).ok());
    ASSERT_TRUE(KitPublish(store_.get(), model, longest, {96}).ok());
    for (uint64_t prompt = 0; prompt < kPrompts; ++prompt) ASSERT_TRUE(Publish(prompt).ok());
    store_.reset();
  }
  {
    RawDatabase raw(folder_);
    const ManifestRecord last = ParseManifestRecord(raw.All("manifests").at(1).second).value();
    ASSERT_EQ(last.manifest.token_count, 96u);
    raw.Delete("objects", NumberKey(last.objects.back()));
  }
  Open();
  EXPECT_EQ(KitFetch(store_.get(), model, asked).value(), 48u);
  EXPECT_EQ(KitFetch(store_.get(), model, longest).value(), 80u);
  EXPECT_EQ(Counted("recovery_dropped_manifests"), 1u);
}

}  // namespace
}  // namespace hearth
