// The store with --disk-compression auto: less on disk, the same bytes back, damage found as ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "cache_store/disk/verify.h"
#include "cache_store/store/store_seams.h"
#include "tests/support/faulty_tier.h"
#include "tests/support/manual_executor.h"
#include "tests/support/store_checks.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kHeadDim = 64;  // a slice of 16 tokens: 8 KiB

class StoreCompression : public ::testing::Test {
 protected:
  void Open(DiskCompression compression, uint64_t disk_bytes = 16 << 20) {
    store_.reset();
    StoreOptions options;
    options.data_dir = folder_.path();
    options.host_bytes = 0;
    options.disk_bytes = disk_bytes;
    options.disk_compression = compression;
    StoreSeams seams;
    seams.executor = std::make_unique<ManualExecutor>();
    seams.wrap_disk = [this](SliceTier* tier) {
      return std::make_unique<FaultyTier>(tier, &faults_);
    };
    store_ = OpenStore(options, std::move(seams)).value();
  }

  // Numbers of one magnitude, as KV is, from the seed and the place.
  static SliceView Slice(uint64_t seed, const ObjectId& id, uint32_t layer, size_t bytes) {
    std::mt19937_64 random(seed * 1000003 + id.begin * 31 + layer);
    std::normal_distribution<float> normal(0, 1);
    std::shared_ptr<std::byte> memory = AllocateSlice(bytes);
    for (size_t at = 0; at < bytes; at += 4) {
      const float value = normal(random);
      std::memcpy(memory.get() + at, &value, 4);
    }
    const absl::Span<const std::byte> view(memory.get(), bytes);
    return SliceView{std::move(memory), view};
  }
  static KitPrompt Prompt(uint64_t seed) { return {KitTokens(seed, 65), {}}; }

  absl::Status Publish(uint64_t seed) {
    const KvLayout layout = model_.Layout().value();
    PublishSpec spec = KitSpec(model_, Prompt(seed), {64});
    for (PublishObject& object : spec.objects) {
      const std::vector<uint32_t> layers = layout.LayersOf(object.id.group);
      for (size_t i = 0; i < layers.size(); ++i) {
        const SliceView slice = Slice(seed, object.id, layers[i], layout.SliceBytes(16));
        object.slice_digests[i] = SliceDigest(slice.bytes.data(), slice.bytes.size());
      }
    }
    auto session = store_->Publish(spec);
    if (!session.ok()) return session.status();
    for (const uint32_t i : (*session)->needed()) {
      const ObjectId& id = spec.objects[i].id;
      for (const uint32_t layer : layout.LayersOf(id.group)) {
        const absl::Status put =
            (*session)->PutSlice(i, layer, Slice(seed, id, layer, layout.SliceBytes(16)));
        if (!put.ok()) return put;
      }
    }
    return (*session)->Commit().status();
  }
  // Reads all of it back. kNotFound: a miss; kInternal: other bytes than were published.
  absl::Status Read(uint64_t seed) {
    const KvLayout layout = model_.Layout().value();
    auto session = store_->Fetch(KitQuery(model_, Prompt(seed)), 0, 0).value();
    const LookupPlan& plan = session->plan();
    if (plan.usable_tokens == 0) return absl::NotFoundError(plan.miss_reason);
    for (size_t i = 0; i < plan.objects.size(); ++i) {
      for (const uint32_t layer : layout.LayersOf(plan.objects[i].id.group)) {
        const auto read = session->ReadSlice(i, layer);
        if (!read.ok()) return read.status();
        const SliceView expected = Slice(seed, plan.objects[i].id, layer, layout.SliceBytes(16));
        if (read->bytes != expected.bytes) return absl::InternalError("other bytes");
      }
    }
    return absl::OkStatus();
  }
  uint64_t DiskBytes() { return store_->Stats().tiers.at(1).bytes; }
  uint64_t Counted(const char* name) { return store_->Stats().counters.at(name); }
  void CheckInvariants() { hearth::CheckInvariants(store_.get()); }

  const TestFolder folder_;
  const Fingerprint model_ = [] {
    KitModel model;
    model.head_dim = kHeadDim;
    return model.Make();
  }();
  Faults faults_;
  std::unique_ptr<TieredStore> store_;
};

TEST_F(StoreCompression, TakesLessAndGivesBackTheSameBytes) {
  Open(DiskCompression::kNone);
  ASSERT_TRUE(Publish(1).ok());
  const uint64_t plain = DiskBytes();
  ASSERT_TRUE(store_->DropAll("default", true).ok());
  ASSERT_EQ(DiskBytes(), 0u);
  Open(DiskCompression::kAuto);
  ASSERT_TRUE(Publish(1).ok());
  EXPECT_LT(DiskBytes(), 0.92 * plain);
  EXPECT_EQ(Counted("disk_compressed_from_bytes"), 8u * 8192);
  EXPECT_LT(Counted("disk_compressed_to_bytes"), 0.9 * 8 * 8192);
  EXPECT_TRUE(Read(1).ok()) << Read(1);
  CheckInvariants();
  EXPECT_EQ(VerifyDataDir(folder_.path()).value().problem_count, 0u);
}

TEST_F(StoreCompression, WhatIsStoredIsAccountedAndReadAfterARestartWithoutIt) {
  Open(DiskCompression::kAuto);
  ASSERT_TRUE(Publish(1).ok());
  const uint64_t bytes = DiskBytes();
  Open(DiskCompression::kNone);
  EXPECT_EQ(DiskBytes(), bytes);
  EXPECT_TRUE(Read(1).ok()) << Read(1);
  ASSERT_TRUE(Publish(2).ok()) << "beside others that are not compressed";
  EXPECT_GT(DiskBytes(), 2.08 * bytes);
  EXPECT_TRUE(Read(2).ok());
  ASSERT_TRUE(store_->DropAll("default", true).ok());
  EXPECT_EQ(DiskBytes(), 0u);
  CheckInvariants();
}

TEST_F(StoreCompression, MoreFitsIntoTheSameSpace) {
  uint64_t fit[2] = {};
  for (const DiskCompression compression : {DiskCompression::kNone, DiskCompression::kAuto}) {
    Open(compression, 1 << 20);
    for (uint64_t seed = 1; seed <= 40; ++seed) ASSERT_TRUE(Publish(seed).ok());
    CheckInvariants();
    fit[static_cast<int>(compression)] = store_->Stats().restore_points;
    EXPECT_TRUE(Read(40).ok());
    ASSERT_TRUE(store_->DropAll("default", true).ok());
  }
  EXPECT_GT(fit[1], fit[0]);
}

TEST_F(StoreCompression, NoiseStaysAsItIs) {
  Open(DiskCompression::kAuto);
  ASSERT_TRUE(KitPublish(store_.get(), model_, Prompt(1), {64}).ok());
  EXPECT_EQ(Counted("disk_compressed_from_bytes"), 0u);
  EXPECT_EQ(KitFetch(store_.get(), model_, Prompt(1)).value(), 64u);
}

TEST_F(StoreCompression, DamagedCompressedBytesAreQuarantinedAndNeverServed) {
  for (const Fault fault : {Fault::kBitFlip, Fault::kTruncation}) {
    Open(DiskCompression::kAuto);
    ASSERT_TRUE(Publish(1).ok());
    ASSERT_TRUE(Publish(2).ok());
    faults_.Arm(fault, 1);
    const absl::Status damaged = Read(1);
    EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
    EXPECT_EQ(Counted("quarantined_objects"), 1u);
    EXPECT_TRUE(absl::IsNotFound(Read(1)));
    const auto report = store_->Explain(KitQuery(model_, Prompt(1))).value();
    EXPECT_THAT(report.summary, HasSubstr("quarantined"));
    EXPECT_TRUE(Read(2).ok());
    ASSERT_TRUE(Publish(1).ok()) << "healed";
    EXPECT_TRUE(Read(1).ok());
    CheckInvariants();
    ASSERT_TRUE(store_->DropAll("default", true).ok());
  }
}

TEST_F(StoreCompression, APublishThatBecomesATableIsCompressedToo) {
  Open(DiskCompression::kAuto, 64 << 20);
  // 2 MiB: past the size from which a publish is a table of its own.
  KitModel wide;
  wide.head_dim = 2048;
  const Fingerprint model = wide.Make();
  const KvLayout layout = model.Layout().value();
  const KitPrompt prompt = Prompt(5);
  PublishSpec spec = KitSpec(model, prompt, {64});
  for (PublishObject& object : spec.objects) {
    const std::vector<uint32_t> layers = layout.LayersOf(object.id.group);
    for (size_t i = 0; i < layers.size(); ++i) {
      const SliceView slice = Slice(5, object.id, layers[i], layout.SliceBytes(16));
      object.slice_digests[i] = SliceDigest(slice.bytes.data(), slice.bytes.size());
    }
  }
  {
    auto session = store_->Publish(spec).value();
    for (const uint32_t i : session->needed()) {
      const ObjectId& id = spec.objects[i].id;
      for (const uint32_t layer : layout.LayersOf(id.group)) {
        ASSERT_TRUE(session->PutSlice(i, layer, Slice(5, id, layer, layout.SliceBytes(16))).ok());
      }
    }
    ASSERT_TRUE(session->Commit().ok());
  }
  const uint64_t raw = 8 * layout.SliceBytes(16);
  EXPECT_LT(DiskBytes(), 0.92 * static_cast<double>(raw));
  Open(DiskCompression::kAuto, 64 << 20);
  auto session = store_->Fetch(KitQuery(model, prompt), 0, 0).value();
  ASSERT_EQ(session->plan().usable_tokens, 64u);
  EXPECT_TRUE(session->ReadSlice(0, layout.LayersOf(session->plan().objects[0].id.group)[0]).ok());
  EXPECT_EQ(VerifyDataDir(folder_.path()).value().problem_count, 0u);
}

}  // namespace
}  // namespace hearth
