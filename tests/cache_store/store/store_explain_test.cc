// Explain: each reason for a miss, after an event that really causes it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cache_store/store/calls/prompt_explainer.h"
#include "tests/support/stepped_store.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kNeverStored[] = "never stored, or removed too long ago to remember";

// Chunks of 16 tokens, window of 24: a boundary needs the local objects of its last two chunks.
class StoreExplain : public FaultyTierFixture, public ::testing::Test {
 protected:
  void Open(uint64_t host_bytes, uint64_t disk_bytes) {
    options_.data_dir = disk_bytes > 0 ? folder_.path() : "";
    options_.host_bytes = host_bytes;
    options_.count_points = false;
    options_.disk_bytes = disk_bytes;
    FaultyTierFixture::Open();
  }
  void Publish(const KitPrompt& prompt, const std::vector<uint32_t>& boundaries) {
    const auto result = KitPublish(store_.get(), model_, prompt, boundaries);
    ASSERT_TRUE(result.ok()) << result.status();
  }
  void Drop(uint32_t tokens) {
    for (const RestorePoint& point : store_->List("default")) {
      if (point.tokens == tokens) {
        ASSERT_TRUE(store_->Drop(point.id, "default", true).ok());
      }
    }
  }
  ExplainReport Explain(const KitPrompt& prompt) {
    return store_->Explain(KitQuery(model_, prompt)).value();
  }
  BoundaryReport At(const KitPrompt& prompt, uint32_t boundary) {
    for (const BoundaryReport& report : Explain(prompt).boundaries) {
      if (report.boundary == boundary) return report;
    }
    ADD_FAILURE() << "nothing is said of " << boundary;
    return {};
  }
};

TEST_F(StoreExplain, NeverStoredPointIsExplained) {
  Open(1 << 20, 1 << 20);
  Publish(prompt_, {32});
  const BoundaryReport report = At(prompt_, 64);
  EXPECT_EQ(report.miss, MissReason::kNeverStored);
  EXPECT_EQ(report.reason, kNeverStored);
  EXPECT_FALSE(report.removed.has_value());
  EXPECT_TRUE(At(prompt_, 32).usable);
  EXPECT_EQ(At(prompt_, 32).miss, MissReason::kNone);
}

TEST_F(StoreExplain, ReportedBoundaryBytesMatchFetch) {
  Open(1 << 20, 1 << 20);
  KitPrompt prompt{KitTokens(7, 150), {53}};
  Publish(prompt, {32, 53, 96, 144});
  size_t usable = 0;
  for (const BoundaryReport& report : Explain(prompt).boundaries) {
    if (!report.usable) continue;
    ++usable;
    const auto session = store_->Fetch(KitQuery(model_, prompt), 0, report.boundary).value();
    EXPECT_EQ(session->plan().usable_tokens, report.boundary);
    EXPECT_EQ(session->plan().total_bytes, report.bytes) << report.boundary;
    EXPECT_EQ(session->plan().slowest_tier, report.slowest_tier) << report.boundary;
  }
  EXPECT_GE(usable, 4u);
}

// The reason must not show how far back the history goes: this depends on all tenants, and would
// reveal their activity.
TEST_F(StoreExplain, ReasonForUnknownPromptIsConstant) {
  Open(1 << 20, 1 << 20);
  Publish(prompt_, {32});
  Open(1 << 20, 1 << 20);
  clock_.Advance(absl::Minutes(3));
  EXPECT_EQ(At(other_, 64).reason, kNeverStored);
}

TEST_F(StoreExplain, RamEvictionIsExplained) {
  Open(3 * 4 * 256, 0);  // space for one prompt of 64 tokens, not for two
  Publish(prompt_, {64});
  Publish(other_, {64});
  clock_.Advance(absl::Seconds(12));
  for (const uint32_t boundary : {48u, 64u}) {
    const BoundaryReport report = At(prompt_, boundary);
    EXPECT_EQ(report.miss, MissReason::kRemoved);
    EXPECT_EQ(report.removed, Removal::kHostFull);
    EXPECT_EQ(report.removed_ago, absl::Seconds(12));
    EXPECT_THAT(report.reason, HasSubstr("evicted 12s ago: RAM was full (host_bytes 3 KiB)"));
  }
  EXPECT_THAT(Explain(prompt_).summary, HasSubstr("at boundary 64: evicted 12s ago"));
}

TEST_F(StoreExplain, DiskEvictionIsExplained) {
  Open(0, 24 << 10);
  Publish(prompt_, {64});
  for (uint64_t seed = 10; At(prompt_, 64).usable; ++seed) Publish({KitTokens(seed, 65), {}}, {64});
  clock_.Advance(absl::Hours(5));
  const BoundaryReport report = At(prompt_, 64);
  EXPECT_EQ(report.removed, Removal::kDiskFull);
  EXPECT_THAT(report.reason, HasSubstr("evicted 5h ago: the disk was full (disk_bytes"));
}

TEST_F(StoreExplain, DropIsExplained) {
  Open(1 << 20, 1 << 20);
  Publish(prompt_, {64});
  Drop(64);
  EXPECT_EQ(At(prompt_, 64).removed, Removal::kDropped);
  EXPECT_EQ(At(prompt_, 64).reason, "dropped 0 ago on request");
}

TEST_F(StoreExplain, LatestRemovalReasonIsExplained) {
  Open(1 << 20, 1 << 20);
  Publish(prompt_, {64});
  Drop(64);
  clock_.Advance(absl::Seconds(50));
  Publish(prompt_, {64});
  EXPECT_TRUE(At(prompt_, 64).usable);
  Drop(64);
  clock_.Advance(absl::Seconds(7));
  EXPECT_EQ(At(prompt_, 64).removed_ago, absl::Seconds(7));
}

TEST_F(StoreExplain, QuarantineIsExplained) {
  Open(0, 1 << 20);
  Publish(prompt_, {64});
  disk_faults_.Arm(Fault::kBitFlip, 1);
  EXPECT_TRUE(absl::IsDataLoss(KitFetch(store_.get(), model_, prompt_).status()));
  EXPECT_THAT(At(prompt_, 64).reason, HasSubstr("a read failed and will be retried"));
  disk_faults_.Arm(Fault::kBitFlip, 1000);
  FetchAgain(store_.get(), model_, prompt_, &clock_, 4);
  const BoundaryReport report = At(prompt_, 64);
  EXPECT_EQ(report.removed, Removal::kQuarantined);
  EXPECT_THAT(report.reason, HasSubstr("its bytes failed verification"));
}

TEST_F(StoreExplain, MissingLocalTailIsExplained) {
  Open(1 << 20, 1 << 20);
  Publish(prompt_, {64});
  const BoundaryReport report = At(prompt_, 32);
  EXPECT_EQ(report.miss, MissReason::kTailGone);
  EXPECT_FALSE(report.removed.has_value());
  EXPECT_THAT(report.reason, HasSubstr("tail missing: the last 23 tokens"));
}

TEST_F(StoreExplain, RemovedLocalTailIsExplained) {
  Open(1 << 20, 1 << 20);
  Publish(prompt_, {32, 64});
  Drop(32);
  clock_.Advance(absl::Seconds(90));
  // both boundaries need the local object of tokens 16 to 31
  for (const uint32_t boundary : {32u, 48u}) {
    const BoundaryReport report = At(prompt_, boundary);
    EXPECT_EQ(report.miss, MissReason::kTailGone) << boundary;
    EXPECT_EQ(report.removed, Removal::kDropped);
    EXPECT_THAT(report.reason, AllOf(HasSubstr("tail missing"), HasSubstr("dropped 1m30s ago")));
  }
}

TEST_F(StoreExplain, MissingGlobalObjectsAreExplained) {
  Open(0, 1 << 20);
  Publish(prompt_, {64});
  const auto reading = store_->FetchById(store_->List("default").at(0).id, "default").value();
  // The reader's references keep the other objects stored after the first object is found damaged.
  const ObjectId first = reading->plan().objects[0].id;
  ASSERT_EQ(first.group, LayerGroup::kGlobal);
  disk_faults_.Arm(Fault::kBitFlip, 1);
  const KvLayout layout = model_.Layout().value();
  const uint32_t layer = layout.LayersOf(LayerGroup::kGlobal).at(0);
  EXPECT_TRUE(absl::IsDataLoss(reading->ReadSlice(0, layer).status()));
  EXPECT_EQ(At(prompt_, 64).miss, MissReason::kGlobalsGone);
  disk_faults_.Arm(Fault::kBitFlip, 1000);
  FetchAgain(store_.get(), model_, prompt_, &clock_, 4);
  const BoundaryReport report = At(prompt_, 64);
  EXPECT_EQ(report.miss, MissReason::kGlobalsGone);
  EXPECT_EQ(report.removed, Removal::kQuarantined);
  EXPECT_THAT(report.reason,
              HasSubstr("objects of the global layers before it are missing; quarantined"));
}

TEST_F(StoreExplain, DifferentPrefillCutsAreExplained) {
  Open(1 << 20, 1 << 20);
  Publish({prompt_.tokens, {10}}, {64});
  const BoundaryReport report = At(prompt_, 64);
  EXPECT_EQ(report.miss, MissReason::kOtherCuts);
  EXPECT_THAT(report.reason, HasSubstr("stored with other prefill cuts"));
}

// If a hit could have been longer, Explain says why it is not.
TEST_F(StoreExplain, HitExplainsLongerUnusablePoints) {
  Open(1 << 20, 1 << 20);
  Publish({prompt_.tokens, {10}}, {64});
  Publish(prompt_, {16});
  ExplainReport report = Explain(prompt_);
  EXPECT_EQ(report.usable_tokens, 16u);
  EXPECT_THAT(report.summary,
              AllOf(HasSubstr("hit: 16 of 65"),
                    HasSubstr("the same tokens are stored up to 64 with prefill cuts at 10")));
  KitModel other;
  other.weights = "w1";
  const KitPrompt longer{KitTokens(1, 129), {}};
  ASSERT_TRUE(KitPublish(store_.get(), other.Make(), longer, {96}).ok());
  Publish(longer, {32});
  report = Explain(longer);
  EXPECT_EQ(report.usable_tokens, 32u);
  ASSERT_EQ(report.other_fingerprints.size(), 1u) << report.summary;
  EXPECT_EQ(report.other_fingerprints[0].difference.field, "weights");
  EXPECT_EQ(report.other_fingerprints[0].matched_tokens, 96u);
  EXPECT_THAT(report.summary, HasSubstr("weights is w0 here and w1 there"));
  // Prefixes with other cuts or fingerprints are not mentioned if they are not longer than the hit.
  Publish(longer, {96});
  report = Explain(longer);
  EXPECT_TRUE(report.other_fingerprints.empty());
  EXPECT_THAT(report.summary, Not(HasSubstr("; ")));
}

TEST_F(StoreExplain, FullHitDoesNotMentionPrefillCuts) {
  Open(1 << 20, 1 << 20);
  Publish(prompt_, {48, 64});
  const ExplainReport report = Explain({KitTokens(1, 64), {}});
  EXPECT_EQ(report.usable_tokens, 48u);
  EXPECT_THAT(report.summary, Not(HasSubstr("; ")));
}

TEST_F(StoreExplain, LongReportKeepsDeclaredBoundaries) {
  Open(1 << 20, 1 << 20);
  Publish(prompt_, {32});
  // The prompt has 40 chunks, of which 2 are stored, and two prefill cuts.
  const KitPrompt longer{KitTokens(1, 640), {328, 560}};
  const ExplainReport report = Explain(longer);
  std::vector<uint32_t> told;
  for (const BoundaryReport& boundary : report.boundaries) told.push_back(boundary.boundary);
  std::vector<uint32_t> expected;
  for (uint32_t boundary = 16; boundary <= 18 * 16; boundary += 16) expected.push_back(boundary);
  expected.insert(expected.end(), {328, 560});
  EXPECT_EQ(told, expected);
  EXPECT_EQ(report.omitted_boundaries, 41u - told.size());
}

TEST_F(StoreExplain, RestartForgetsRemovalReasons) {
  Open(1 << 20, 1 << 20);
  Publish(prompt_, {32, 64});
  Publish(other_, {64});
  Drop(32);
  ASSERT_TRUE(store_->Drop(store_->List("default").at(0).id, "default", true).ok());
  EXPECT_EQ(At(other_, 64).removed, Removal::kDropped);
  EXPECT_EQ(At(prompt_, 32).removed, Removal::kDropped);
  Open(1 << 20, 1 << 20);
  const BoundaryReport gone = At(other_, 64);
  EXPECT_EQ(gone.miss, MissReason::kNeverStored);
  EXPECT_EQ(gone.reason, kNeverStored);
  EXPECT_FALSE(gone.removed.has_value());
  const BoundaryReport tail = At(prompt_, 32);
  EXPECT_EQ(tail.miss, MissReason::kTailGone);
  EXPECT_FALSE(tail.removed.has_value());
  EXPECT_TRUE(At(prompt_, 64).usable);
}

TEST_F(StoreExplain, ExplainHidesOtherTenants) {
  Open(1 << 20, 1 << 20);
  KitPrompt theirs = prompt_;
  theirs.tenant = "acme";
  Publish(other_, {64});  // another prompt of the default tenant
  const ExplainReport before = Explain(prompt_);
  Publish(theirs, {64});
  const ExplainReport after = Explain(prompt_);
  EXPECT_THAT(after.summary,
              AllOf(HasSubstr("tenant \"default\""), HasSubstr("tenants do not share prefixes"),
                    Not(HasSubstr("acme"))));
  EXPECT_EQ(after.summary, before.summary) << "says nothing of what others store";
  EXPECT_EQ(after.boundaries.size(), before.boundaries.size());
  EXPECT_EQ(At(prompt_, 64).miss, MissReason::kNeverStored);
}

TEST_F(StoreExplain, ExplainHidesOtherTenantsDrop) {
  Open(1 << 20, 1 << 20);
  KitPrompt theirs = prompt_;
  theirs.tenant = "acme";
  Publish(other_, {64});
  Publish(theirs, {64});
  ASSERT_TRUE(store_->DropAll("acme", true).ok());
  EXPECT_EQ(At(prompt_, 64).reason, kNeverStored);
}

TEST(RemovalText, EveryRemovalReasonHasText) {
  Evictor::Limits limits;
  limits.host_bytes = uint64_t{4} << 30;
  limits.disk_bytes = uint64_t{64} << 30;
  const auto text = [&](Removal removal) {
    return RemovalText(removal, absl::Minutes(61) + absl::Seconds(5), limits);
  };
  EXPECT_EQ(text(Removal::kHostFull), "evicted 1h1m ago: RAM was full (host_bytes 4 GiB)");
  EXPECT_EQ(text(Removal::kDiskFull), "evicted 1h1m ago: the disk was full (disk_bytes 64 GiB)");
  EXPECT_EQ(text(Removal::kQuota), "evicted 1h1m ago: the tenant's quota was reached");
  EXPECT_EQ(text(Removal::kExpired), "expired 1h1m ago");
  EXPECT_EQ(text(Removal::kDropped), "dropped 1h1m ago on request");
  EXPECT_EQ(text(Removal::kQuarantined), "quarantined 1h1m ago: its bytes failed verification");
}

TEST(History, OldestHistoryEntryIsForgotten) {
  History history;
  const auto key = [](size_t i) {
    Digest digest{};
    std::memcpy(digest.data(), &i, sizeof(i));
    return digest;
  };
  const absl::Time start = absl::FromUnixSeconds(1000);
  for (size_t i = 0; i < History::kMaxEntries; ++i) {
    history.Record(key(i), Removal::kDropped, start + absl::Seconds(i));
  }
  // this record becomes the newest
  history.Record(key(0), Removal::kDiskFull, start + absl::Hours(100));
  history.Record(key(History::kMaxEntries), Removal::kDropped, start + absl::Hours(101));
  ASSERT_NE(history.Find(key(0)), nullptr);
  EXPECT_EQ(history.Find(key(0))->why, Removal::kDiskFull);
  EXPECT_EQ(history.Find(key(1)), nullptr);
}

}  // namespace
}  // namespace hearth
