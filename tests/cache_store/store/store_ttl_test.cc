// Times to live: an expired restore point is not served, even if other restore points keep some of
// its objects, and expiry is a removal reason of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/raw_database.h"
#include "tests/support/stepped_store.h"
#include "tests/support/store_checks.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StoreTtl : public SteppedStoreFixture, public ::testing::Test {
 protected:
  StoreTtl() {
    options_.host_bytes = 1 << 20;
    options_.disk_bytes = 64 << 20;
  }
  void OpenInRam() {
    options_.disk_bytes = 0;
    Open();
  }
  PublishResult Publish(const KitPrompt& prompt, const std::vector<uint32_t>& boundaries,
                        absl::Duration ttl, Durability durability = Durability::kDefault) {
    PublishSpec spec = KitSpec(model_, prompt, boundaries, durability);
    spec.ttl = ttl;
    auto session = store_->Publish(spec).value();
    EXPECT_TRUE(KitPutAll(session.get(), spec, model_, prompt).ok());
    const absl::StatusOr<PublishResult> result = session->Commit();
    EXPECT_TRUE(result.ok()) << result.status();
    CheckInvariants(store_.get());
    return result.ok() ? *result : PublishResult();
  }
  static KitPrompt UpTo(KitPrompt prompt, uint32_t tokens) {
    prompt.tokens.resize(tokens);
    return prompt;
  }
  // Returns the number of tokens of the prompt that can be restored.
  uint32_t Usable(const KitPrompt& prompt) {
    const uint32_t usable = KitFetch(store_.get(), model_, prompt).value();
    executor_->RunAll();
    CheckInvariants(store_.get());
    return usable;
  }
  uint64_t Expired() { return store_->Stats().removed.at("expired"); }
  RestorePoint Only(const std::string& tenant = "default") {
    const std::vector<RestorePoint> points = store_->List(tenant);
    EXPECT_EQ(points.size(), 1u);
    return points.empty() ? RestorePoint() : points[0];
  }
};

TEST_F(StoreTtl, ExpiredPointExplainsMiss) {
  Open();
  const KitPrompt prompt = Prompt(1, 65);
  const WatchStart start = store_->Subscribe("default", {}, [](const StoreEvent&) {});
  Publish(prompt, {64}, absl::Minutes(1));
  clock_.Advance(absl::Seconds(59));
  EXPECT_EQ(Only().expires_in, absl::Seconds(1));
  EXPECT_EQ(Usable(prompt), 64u);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(Usable(prompt), 0u);
  EXPECT_THAT(store_->List("default"), IsEmpty());
  EXPECT_EQ(Expired(), 1u);
  EXPECT_EQ(Counted("evicted_restore_points"), 0u) << "nobody needed room";
  EXPECT_EQ(store_->Stats().tiers.back().bytes, 0u);
  clock_.Advance(absl::Seconds(5));
  const ExplainReport report = store_->Explain(KitQuery(model_, prompt)).value();
  const BoundaryReport& last = report.boundaries.back();
  EXPECT_EQ(last.miss, MissReason::kRemoved);
  EXPECT_EQ(last.removed, Removal::kExpired);
  EXPECT_THAT(last.reason, HasSubstr("expired 5s ago"));
  const WatchStart missed =
      store_->Subscribe("default", {start.incarnation, start.sequence}, [](const StoreEvent&) {});
  ASSERT_EQ(missed.missed.size(), 2u);
  EXPECT_EQ(missed.missed[1].kind, StoreEvent::Kind::kEvicted);
  EXPECT_EQ(missed.missed[1].removed, Removal::kExpired);
}

TEST_F(StoreTtl, UpkeepRemovesExpiredPoints) {
  OpenInRam();
  for (uint64_t i = 0; i < 200; ++i) Publish(Prompt(i, 33), {32}, absl::Seconds(10 + i % 2));
  EXPECT_EQ(stepped()->UpkeepStep(), absl::Seconds(1));
  EXPECT_EQ(Expired(), 0u);
  clock_.Advance(absl::Seconds(10));
  EXPECT_LT(stepped()->UpkeepStep(), absl::Seconds(1)) << "there is more, a batch at a time";
  EXPECT_GT(Expired(), 0u);
  EXPECT_LT(Expired(), 100u);
  EXPECT_EQ(stepped()->UpkeepStep(), absl::Seconds(1));
  EXPECT_EQ(Expired(), 100u);
  clock_.Advance(absl::Seconds(1));
  for (int step = 0; step < 3; ++step) stepped()->UpkeepStep();
  EXPECT_EQ(Expired(), 200u);
  EXPECT_EQ(store_->Stats().tiers[0].bytes, 0u);
  EXPECT_EQ(store_->Stats().objects, 0u);
}

TEST_F(StoreTtl, ExpiredPointsAreNotServed) {
  OpenInRam();
  // Boundary 16 has no restore point of its own. Its object belongs to an expired restore point
  // (`longer`) or to an unexpired one (`live`).
  const KitPrompt longer = Prompt(1000, 33), live = Prompt(1001, 33);
  for (uint64_t i = 0; i < 100; ++i) Publish(Prompt(i, 33), {32}, absl::Seconds(5));
  Publish(longer, {32}, absl::Seconds(5));
  Publish(live, {32}, absl::ZeroDuration());
  clock_.Advance(absl::Seconds(5));
  const KitPrompt shorter = UpTo(longer, 20);
  const ExplainReport report = store_->Explain(KitQuery(model_, shorter)).value();
  EXPECT_EQ(report.usable_tokens, 0u);
  EXPECT_EQ(report.boundaries.back().removed, Removal::kExpired);
  EXPECT_EQ(Usable(shorter), 0u);
  EXPECT_LT(Expired(), 50u) << "a lookup removes a few only";
  EXPECT_EQ(Usable(live), 32u);
}

TEST_F(StoreTtl, RepublishNeverShortensTtl) {
  Open();
  const KitPrompt prompt = Prompt(1, 65);
  Publish(prompt, {64}, absl::Minutes(1));
  clock_.Advance(absl::Seconds(30));
  Publish(prompt, {64}, absl::Seconds(10));
  EXPECT_EQ(Only().expires_in, absl::Seconds(30));
  Publish(prompt, {64}, absl::Minutes(1));
  EXPECT_EQ(Only().expires_in, absl::Minutes(1));
  clock_.Advance(absl::Seconds(59));
  EXPECT_EQ(Usable(prompt), 64u);
  Open();
  EXPECT_EQ(Only().expires_in, absl::Seconds(1)) << "the renewal is on disk";
  Publish(prompt, {64}, absl::ZeroDuration());
  EXPECT_EQ(Only().expires_in, absl::Seconds(1)) << "whoever asks for nothing changes nothing";
  Publish(prompt, {64}, absl::Hours(1000));
  Open();
  clock_.Advance(absl::Hours(999));
  EXPECT_EQ(Usable(prompt), 64u);
  EXPECT_EQ(Expired(), 0u);
}

TEST_F(StoreTtl, DurablePublishWritesDespitePendingRenewal) {
  Open();
  const KitPrompt prompt = Prompt(1, 65);
  Publish(prompt, {64}, absl::Minutes(1), Durability::kDisk);
  Publish(prompt, {64}, absl::Minutes(10), Durability::kMemory);
  Publish(prompt, {64}, absl::Minutes(5), Durability::kDisk);
  store_.reset();  // the write of the second publish is still queued
  Open();
  EXPECT_GE(Only().expires_in, absl::Minutes(5));
}

TEST_F(StoreTtl, TtlSurvivesRestart) {
  Open();
  const KitPrompt early = Prompt(1, 65), late = Prompt(2, 65), behind = Prompt(3, 65);
  Publish(early, {64}, absl::Minutes(1));
  Publish(late, {64}, absl::Minutes(2));
  Publish(behind, {64}, absl::Minutes(2), Durability::kMemory);
  executor_->RunAll();
  store_.reset();
  clock_.Advance(absl::Minutes(1));
  Open();
  EXPECT_EQ(Usable(early), 0u);
  EXPECT_EQ(Usable(late), 64u);
  EXPECT_EQ(Usable(behind), 64u);
  const ExplainReport report = store_->Explain(KitQuery(model_, early)).value();
  EXPECT_EQ(report.boundaries.back().removed, Removal::kExpired);
  clock_.Advance(absl::Minutes(1));
  EXPECT_EQ(Usable(late) + Usable(behind), 0u);
  store_.reset();
  Open();
  EXPECT_EQ(store_->Stats().restore_points, 0u);
  EXPECT_EQ(Counted("recovery_collected_objects"), 0u);
}

TEST_F(StoreTtl, PinDelaysExpiry) {
  Open();
  const KitPrompt prompt = Prompt(1, 33);
  const KitPrompt shorter = UpTo(prompt, 20);
  Publish(prompt, {32}, absl::Minutes(1));
  const Digest id = Only().id;
  ASSERT_TRUE(store_->SetPinned(id, "default", true).ok());
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(Usable(prompt), 32u);
  EXPECT_EQ(Usable(shorter), 16u) << "what is below it is there thanks to the pin";
  Open();
  EXPECT_EQ(Usable(prompt), 32u);
  ASSERT_TRUE(store_->SetPinned(id, "default", false).ok());
  EXPECT_EQ(Usable(prompt), 16u);
  EXPECT_FALSE(store_->SetPinned(id, "default", true).ok()) << "it is gone";
  clock_.Advance(absl::Minutes(10));
  EXPECT_EQ(Usable(shorter), 0u) << "and so is what was made of it meanwhile";
}

TEST_F(StoreTtl, ExpiredPointLeavesSharedObjects) {
  Open();
  const KitPrompt longer = Prompt(1, 129);
  Publish(longer, {128}, absl::ZeroDuration());
  const uint64_t alone = store_->Stats().objects;
  Publish(longer, {64, 128}, absl::Minutes(1));
  EXPECT_GT(store_->Stats().objects, alone) << "the tail at 64";
  const KitPrompt shorter = UpTo(longer, 65);
  EXPECT_EQ(Usable(shorter), 64u);
  clock_.Advance(absl::Minutes(1));
  EXPECT_EQ(Usable(shorter), 0u);
  EXPECT_EQ(store_->Stats().objects, alone);
  EXPECT_EQ(Usable(longer), 128u);
  EXPECT_EQ(Expired(), 1u) << "the point at 128 lives as long as it was to";
}

TEST_F(StoreTtl, ImplicitPointInheritsExpiry) {
  Open();
  const KitPrompt prompt = Prompt(1, 33);
  const KitPrompt shorter = UpTo(prompt, 20);
  Publish(prompt, {32}, absl::Minutes(1));
  clock_.Advance(absl::Seconds(20));
  EXPECT_EQ(Usable(shorter), 16u);
  for (const RestorePoint& point : store_->List("default")) {
    EXPECT_EQ(point.expires_in, absl::Seconds(40)) << point.tokens;
  }
  clock_.Advance(absl::Seconds(40));
  EXPECT_EQ(Usable(shorter), 0u);
  EXPECT_EQ(store_->Stats().objects, 0u);
}

TEST_F(StoreTtl, FirstPublishSetsImplicitPointsTtl) {
  const KitPrompt prompt = Prompt(1, 33);
  const KitPrompt shorter = UpTo(prompt, 20);
  const auto expires_in = [&] {
    for (const RestorePoint& point : store_->List("default")) {
      if (point.tokens == 16) return point.expires_in;
    }
    return absl::ZeroDuration();
  };
  for (const bool made_by_a_lookup : {false, true}) {
    Open();
    Publish(prompt, {32}, absl::ZeroDuration());
    if (made_by_a_lookup) {
      EXPECT_EQ(Usable(shorter), 16u);
    }
    for (const absl::Duration ttl : {absl::Seconds(30), absl::Seconds(60)}) {
      Publish(shorter, {16}, ttl);
      EXPECT_EQ(expires_in(), ttl);
      Open();
      EXPECT_EQ(expires_in(), ttl) << "the disk says the same";
    }
    clock_.Advance(absl::Minutes(1));
    EXPECT_EQ(Usable(shorter), 16u) << "from its parts";
    for (const RestorePoint& point : store_->List("default")) {
      ASSERT_TRUE(store_->Drop(point.id, "default", true).ok());
    }
    executor_->RunAll();
  }
}

TEST_F(StoreTtl, PublishedPointOutlivesPointsSharingObjects) {
  Open();
  const KitPrompt prompt = Prompt(1, 33);
  const KitPrompt shorter = UpTo(prompt, 20);
  Publish(prompt, {32}, absl::Minutes(1));
  EXPECT_EQ(Usable(shorter), 16u) << "now there is a restore point that nobody published";
  Publish(shorter, {16}, absl::ZeroDuration());
  Open();
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(Usable(shorter), 16u);
  EXPECT_EQ(Usable(prompt), 16u);
}

// A lookup creates a restore point. The first publish of this restore point sets its expiry, before
// or after a restart.
TEST_F(StoreTtl, ImplicitPointStaysImplicitAfterRestart) {
  uint64_t seed = 1;
  for (const bool restarts : {false, true}) {
    for (const absl::Duration ttl_of_parts :
         {absl::ZeroDuration(), absl::Duration(absl::Hours(1))}) {
      SCOPED_TRACE(testing::Message() << restarts << ttl_of_parts);
      Open();
      const KitPrompt prompt = Prompt(seed++, 33);
      const KitPrompt shorter = UpTo(prompt, 20);
      const auto expires_in = [&] {
        for (const RestorePoint& point : store_->List("default")) {
          if (point.tokens == 16) return point.expires_in;
        }
        return absl::ZeroDuration();
      };
      Publish(prompt, {32}, ttl_of_parts);
      EXPECT_EQ(Usable(shorter), 16u);
      const absl::Duration inherited = expires_in();
      for (int restart = 0; restarts && restart < 2; ++restart) Open();
      EXPECT_EQ(expires_in(), inherited);
      EXPECT_EQ(store_->List("default").size(), 2u);
      Publish(shorter, {16}, absl::Seconds(30));
      EXPECT_EQ(expires_in(), absl::Seconds(30));
      Open();
      EXPECT_EQ(expires_in(), absl::Seconds(30)) << "now it is somebody's";
      Publish(shorter, {16}, absl::Seconds(10));
      EXPECT_EQ(expires_in(), absl::Seconds(30));
      for (const RestorePoint& point : store_->List("default")) {
        ASSERT_TRUE(store_->Drop(point.id, "default", true).ok());
      }
      executor_->RunAll();
    }
  }
}

TEST_F(StoreTtl, RunningPublishKeepsExpiringObjects) {
  Open();
  const KitPrompt prompt = Prompt(1, 65);
  Publish(prompt, {64}, absl::Minutes(1));
  PublishSpec spec = KitSpec(model_, prompt, {64});
  spec.ttl = absl::Minutes(1);
  auto session = store_->Publish(spec).value();
  EXPECT_THAT(session->needed(), IsEmpty());
  clock_.Advance(absl::Minutes(1));
  stepped()->UpkeepStep();
  EXPECT_EQ(Expired(), 1u);
  EXPECT_THAT(session->Commit().value().boundaries, ElementsAre(64));
  session.reset();
  CheckInvariants(store_.get());
  EXPECT_EQ(Only().expires_in, absl::Minutes(1));
  EXPECT_EQ(Usable(prompt), 64u);
  Open();
  EXPECT_EQ(Usable(prompt), 64u);
}

TEST_F(StoreTtl, TtlLimitsOfTenantApply) {
  options_.default_ttl = absl::Hours(1);
  options_.quotas.by_tenant["bounded"].max_ttl_s = 60;
  options_.quotas.by_tenant["brief"].default_ttl_s = 10;
  Open();
  KitPrompt prompt = Prompt(1, 65);
  const auto life = [&](const std::string& tenant, absl::Duration ttl) {
    prompt.tenant = tenant;
    prompt.tokens[0] += 1;
    Publish(prompt, {64}, ttl);
    return store_->List(tenant).front().expires_in;
  };
  EXPECT_EQ(life("default", absl::ZeroDuration()), absl::Hours(1));
  EXPECT_EQ(life("default", absl::Hours(9)), absl::Hours(9)) << "a default is no limit";
  EXPECT_EQ(life("brief", absl::ZeroDuration()), absl::Seconds(10));
  EXPECT_EQ(life("bounded", absl::ZeroDuration()), absl::Minutes(1));
  EXPECT_EQ(life("bounded", absl::Seconds(7)), absl::Seconds(7));
  prompt.tokens[0] += 1;
  EXPECT_THAT(Publish(prompt, {64}, absl::Hours(1)).notes,
              ElementsAre("ttl_s lowered to the tenant's max_ttl_s, 60"));
  options_.quotas.by_tenant["bounded"].default_ttl_s = 61;
  EXPECT_THAT(options_.Validate().message(), HasSubstr("tenants.bounded.default_ttl_s"));
}

// The folder has two manifests of a restore point, as after a machine crash between writing the one
// with a later expiry and erasing the earlier one.
TEST_F(StoreTtl, ExpiredOlderManifestCountsNoLoss) {
  Open();
  Publish(Prompt(1, 65), {64}, absl::Minutes(1));
  store_.reset();
  const auto earlier = RawDatabase(folder_).All("manifests");
  Open();
  Publish(Prompt(1, 65), {64}, absl::Minutes(2));
  store_.reset();
  {
    RawDatabase raw(folder_);
    for (const auto& [key, value] : earlier) raw.Put("manifests", key, value);
    ASSERT_GT(raw.All("manifests").size(), earlier.size());
  }
  clock_.Advance(absl::Minutes(10));
  Open();
  EXPECT_EQ(Usable(Prompt(1, 65)), 0u);
  EXPECT_EQ(store_->Stats().Of(Counter::kRecoveryLostRestorePoints), 0u);
}

}  // namespace
}  // namespace hearth
