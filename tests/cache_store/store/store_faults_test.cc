// A store with failing tiers: no wrong byte is served, no other entry is lost, and the store keeps
// working.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/stepped_store.h"
#include "tests/support/store_checks.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

class StoreFaults : public FaultyTierFixture, public ::testing::Test {
 protected:
  void Open(uint64_t host_bytes) {
    options_.host_bytes = host_bytes;
    options_.count_points = false;
    options_.disk_bytes = 64 << 20;
    FaultyTierFixture::Open();
  }
  void CheckInvariants() { hearth::CheckInvariants(store_.get()); }
};

TEST_F(StoreFaults, OnlyCorruptObjectIsQuarantined) {
  for (const Fault fault : {Fault::kBitFlip, Fault::kTruncation}) {
    Open(0);
    ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}).ok());
    ASSERT_TRUE(KitPublish(store_.get(), model_, other_, {64}).ok());
    disk_faults_.Arm(fault, 1);
    EXPECT_TRUE(absl::IsDataLoss(KitFetch(store_.get(), model_, prompt_).status()));
    EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 0u) << "a miss from then on";
    auto report = store_->Explain(KitQuery(model_, prompt_)).value();
    EXPECT_THAT(report.summary, HasSubstr("miss"));
    EXPECT_THAT(report.boundaries.at(3).reason, HasSubstr("will be retried"));
    EXPECT_EQ(KitFetch(store_.get(), model_, other_).value(), 64u);
    disk_faults_.Arm(fault, 1000);
    FetchAgain(store_.get(), model_, prompt_, &clock_, 3);
    EXPECT_EQ(Counted("quarantined_objects"), 0u);
    FetchAgain(store_.get(), model_, prompt_, &clock_, 1);
    disk_faults_.Arm(fault, 0);
    EXPECT_EQ(Counted("quarantined_objects"), 1u);
    report = store_->Explain(KitQuery(model_, prompt_)).value();
    EXPECT_THAT(report.boundaries.at(3).reason, HasSubstr("quarantined"));
    EXPECT_EQ(KitFetch(store_.get(), model_, other_).value(), 64u);
    ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}).ok()) << "healed";
    EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u);
    CheckInvariants();
    ASSERT_TRUE(store_->DropAll("default", true).ok());
  }
}

TEST_F(StoreFaults, MisplacedSliceIsNotServed) {
  Open(0);
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}).ok());
  ASSERT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u);
  disk_faults_.Arm(Fault::kWrongKey, 1);
  EXPECT_TRUE(absl::IsDataLoss(KitFetch(store_.get(), model_, prompt_).status()));
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 0u);
}

TEST_F(StoreFaults, DamagedRamCopyUsesDisk) {
  Open(1 << 20);
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}).ok());
  FlipInRam(store_.get());
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u);
  EXPECT_EQ(Counted("host_corrupt_objects"), 1u);
  EXPECT_EQ(Counted("quarantined_objects"), 0u);
  CheckInvariants();
}

TEST_F(StoreFaults, ReadErrorReturnsUnavailable) {
  Open(0);
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}).ok());
  disk_faults_.Arm(Fault::kReadError, 1);
  const absl::Status failed = KitFetch(store_.get(), model_, prompt_).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("disk tier: disk on fire"));
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u);
}

TEST_F(StoreFaults, BriefReadErrorLosesNoPoint) {
  for (const Fault fault : {Fault::kBitFlip, Fault::kTruncation, Fault::kReadError}) {
    Open(0);
    ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}).ok());
    disk_faults_.Arm(fault, 3);
    EXPECT_FALSE(KitFetch(store_.get(), model_, prompt_).ok());
    EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 0u) << "hidden";
    FetchAgain(store_.get(), model_, prompt_, &clock_, 2);
    EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 0u) << "hidden";
    clock_.Advance(absl::Seconds(4));
    EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u);
    EXPECT_EQ(Counted("quarantined_objects"), 0u);
    CheckInvariants();
  }
}

TEST_F(StoreFaults, ScrubRewritesFromRam) {
  options_.scrub.bytes_per_s = 1 << 20;
  Open(1 << 20);
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}).ok());
  disk_faults_.Arm(Fault::kBitFlip, 1000);
  ScrubForAWhile(store_.get(), &clock_);
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u) << "from RAM";
  EXPECT_EQ(Counted("quarantined_objects"), 0u);
  disk_faults_.Arm(Fault::kBitFlip, 0);
  Open(0);
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u);
}

TEST_F(StoreFaults, PersistentReadErrorQuarantinesObject) {
  Open(0);
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}).ok());
  disk_faults_.Arm(Fault::kReadError, 1000);
  EXPECT_TRUE(absl::IsUnavailable(KitFetch(store_.get(), model_, prompt_).status()));
  FetchAgain(store_.get(), model_, prompt_, &clock_, 20);
  EXPECT_EQ(Counted("quarantined_objects"), 0u);
  FetchAgain(store_.get(), model_, prompt_, &clock_, 1);
  disk_faults_.Arm(Fault::kReadError, 0);
  EXPECT_EQ(Counted("quarantined_objects"), 1u);
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 0u);
  const auto report = store_->Explain(KitQuery(model_, prompt_)).value();
  EXPECT_THAT(report.boundaries.at(3).reason, HasSubstr("quarantined"));
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}).ok());
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u);
  CheckInvariants();
}

TEST_F(StoreFaults, LackOfResourcesQuarantinesNothing) {
  Open(0);
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}).ok());
  disk_faults_.Arm(Fault::kReadExhausted, 5);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(absl::IsResourceExhausted(KitFetch(store_.get(), model_, prompt_).status()));
  }
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u);
}

TEST_F(StoreFaults, LostDiskWriteBecomesMiss) {
  Open(0);
  disk_faults_.Arm(Fault::kLostWrite, 1);
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}).ok());
  EXPECT_TRUE(absl::IsDataLoss(KitFetch(store_.get(), model_, prompt_).status()));
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 0u);
}

TEST_F(StoreFaults, FailedWriteRefusesPublish) {
  for (const Fault fault : {Fault::kFull, Fault::kWriteError}) {
    Open(1 << 20);
    disk_faults_.Arm(fault, 1);
    const absl::Status refused = KitPublish(store_.get(), model_, prompt_, {64}).status();
    EXPECT_EQ(refused.code(), fault == Fault::kFull ? absl::StatusCode::kResourceExhausted
                                                    : absl::StatusCode::kUnavailable);
    EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 0u);
    EXPECT_EQ(store_->Stats().objects, 0u);
    CheckInvariants();
    ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}).ok());
    EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u);
    ASSERT_TRUE(store_->DropAll("default", true).ok());
  }
}

TEST_F(StoreFaults, MemoryPublishBecomesDurable) {
  Open(1 << 20);
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}, Durability::kMemory).ok());
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u);
  EXPECT_FALSE(store_->List("default").at(0).durable);
  executor_->RunAll();
  EXPECT_TRUE(store_->List("default").at(0).durable);
  CheckInvariants();
  Open(1 << 20);
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u);
}

TEST_F(StoreFaults, SkippedDiskWriteKeepsRamCopy) {
  Open(1 << 20);
  executor_->SetFull(true);
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}, Durability::kMemory).ok());
  EXPECT_EQ(Counted("write_behind_skipped"), 1u);
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u);
  EXPECT_FALSE(store_->List("default").at(0).durable);
  // A later publish of the same prompt with durability `sync` writes it to disk.
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}, Durability::kSync).ok());
  EXPECT_TRUE(store_->List("default").at(0).durable);
  CheckInvariants();
  Open(1 << 20);
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u);
}

TEST_F(StoreFaults, RamServesAfterFailedBackgroundWrite) {
  Open(1 << 20);
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}, Durability::kMemory).ok());
  disk_faults_.Arm(Fault::kFull, 1);
  executor_->RunAll();
  EXPECT_EQ(Counted("write_behind_failed"), 1u);
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u);
  CheckInvariants();
}

TEST_F(StoreFaults, ImplicitHitCreatesPoint) {
  Open(1 << 20);
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {16, 32, 48, 64}).ok());
  for (const RestorePoint& point : store_->List("default")) {
    if (point.tokens != 48) continue;
    ASSERT_TRUE(store_->Drop(point.id, "default", false).ok());
  }
  ASSERT_EQ(store_->List("default").size(), 3u);
  KitPrompt shorter = prompt_;
  shorter.tokens.resize(49);
  EXPECT_EQ(KitFetch(store_.get(), model_, shorter).value(), 48u)
      << "everything that 48 needs is held by 64 and its window";
  EXPECT_EQ(Counted("implicit_hits"), 1u);
  executor_->RunAll();
  CheckInvariants();
  Open(1 << 20);
  EXPECT_EQ(store_->List("default").size(), 4u);
}

TEST_F(StoreFaults, ExplainReportsAgeAndTier) {
  Open(0);
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}).ok());
  ASSERT_TRUE(store_->SetPinned(store_->List("default").at(0).id, "default", true).ok());
  clock_.Advance(absl::Seconds(90));
  const auto report = store_->Explain(KitQuery(model_, prompt_)).value();
  EXPECT_EQ(report.usable_tokens, 64u);
  const BoundaryReport& boundary = report.boundaries.at(3);
  EXPECT_TRUE(boundary.usable && boundary.pinned);
  EXPECT_EQ(boundary.age, absl::Seconds(90));
  EXPECT_EQ(boundary.slowest_tier, Tier::kDisk);
  EXPECT_THAT(report.boundaries.at(0).reason, HasSubstr("tail missing"));
}

TEST_F(StoreFaults, ExplainNamesDifferingFingerprintField) {
  Open(1 << 20);
  ASSERT_TRUE(KitPublish(store_.get(), model_, prompt_, {64}).ok());
  KitModel changed;
  changed.weights = "w1";
  const Fingerprint other = changed.Make();
  store_->Observe(other, "default");
  const auto report = store_->Explain(KitQuery(other, prompt_)).value();
  ASSERT_EQ(report.other_fingerprints.size(), 1u);
  EXPECT_EQ(report.other_fingerprints[0].difference.field, "weights");
  EXPECT_EQ(report.other_fingerprints[0].matched_tokens, 64u);
  EXPECT_THAT(report.summary, HasSubstr("weights is w1 here and w0 there"));
}

TEST_F(StoreFaults, ExplainNamesDifferingPrefillCuts) {
  Open(1 << 20);
  ASSERT_TRUE(KitPublish(store_.get(), model_, {KitTokens(1, 65), {10}}, {64}).ok());
  const auto report = store_->Explain(KitQuery(model_, prompt_)).value();
  EXPECT_EQ(report.usable_tokens, 0u);
  EXPECT_THAT(report.summary, HasSubstr("cuts at 10"));
}

}  // namespace
}  // namespace hearth
