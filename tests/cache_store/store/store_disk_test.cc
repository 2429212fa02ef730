// A store with a disk: acknowledged restore points survive, damaged bytes are never served, and
// unusable folders are refused with a reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/disk/verify.h"
#include "cache_store/store/store_seams.h"
#include "tests/support/fake_clock.h"
#include "tests/support/raw_database.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

StoreOptions DiskOptions(const TestFolder& folder, uint64_t host_bytes = 1 << 20) {
  StoreOptions options;
  options.data_dir = folder.path();
  options.host_bytes = host_bytes;
  options.count_points = false;
  options.disk_bytes = 64 << 20;
  return options;
}

class DiskStore : public ::testing::Test {
 protected:
  std::unique_ptr<TieredStore> Open(uint64_t host_bytes = 1 << 20) {
    return TieredStore::Open(DiskOptions(folder_, host_bytes)).value();
  }
  const TestFolder folder_;
  const Fingerprint model_ = KitModel().Make();
  const KitPrompt prompt_{KitTokens(1, 200), {100}};
};

TEST_F(DiskStore, AcknowledgedPublishSurvivesReopening) {
  {
    const auto store = Open();
    const auto result = KitPublish(store.get(), model_, prompt_, {100, 192});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->durable, Durability::kDisk);
    Tier tier = Tier::kNone;
    EXPECT_EQ(KitFetch(store.get(), model_, prompt_, &tier).value(), 192u);
    EXPECT_EQ(tier, Tier::kHost);
  }
  const auto store = Open();
  EXPECT_EQ(store->List("default").size(), 2u);
  Tier tier = Tier::kNone;
  EXPECT_EQ(KitFetch(store.get(), model_, prompt_, &tier).value(), 192u);
  EXPECT_EQ(tier, Tier::kDisk);
  ASSERT_TRUE(store->Flush(absl::InfiniteFuture()).ok());
  EXPECT_EQ(KitFetch(store.get(), model_, prompt_, &tier).value(), 192u);
  EXPECT_EQ(tier, Tier::kHost) << "promoted as a whole by the first fetch";
}

TEST_F(DiskStore, PointLargerThanRamIsReadable) {
  const auto store = Open(1000);
  ASSERT_TRUE(KitPublish(store.get(), model_, prompt_, {192}).ok());
  Tier tier = Tier::kNone;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(KitFetch(store.get(), model_, prompt_, &tier).value(), 192u);
    EXPECT_EQ(tier, Tier::kDisk);
  }
  EXPECT_LE(store->Stats().tiers.at(0).bytes, 1000u);
}

TEST_F(DiskStore, PinsAndIdsSurviveReopening) {
  Digest id{};
  {
    const auto store = Open();
    KitPrompt theirs = prompt_;
    theirs.tenant = "theirs";
    ASSERT_TRUE(KitPublish(store.get(), model_, theirs, {192}).ok());
    id = store->List("theirs").at(0).id;
    ASSERT_TRUE(store->SetPinned(id, "theirs", true).ok());
  }
  const auto store = Open();
  EXPECT_TRUE(store->List("default").empty());
  ASSERT_EQ(store->List("theirs").size(), 1u);
  const RestorePoint point = store->List("theirs")[0];
  EXPECT_TRUE(point.pinned && point.durable);
  EXPECT_EQ(point.id, id);
  EXPECT_EQ(store->Drop(id, "theirs", false).value().kept_pinned, 1u);
  EXPECT_EQ(store->Drop(id, "theirs", true).value().dropped, 1u);
  EXPECT_EQ(store->Stats().objects, 0u);
}

TEST_F(DiskStore, DroppedPointsStayDropped) {
  {
    const auto store = Open();
    ASSERT_TRUE(KitPublish(store.get(), model_, prompt_, {100, 192}).ok());
    const DropResult dropped = store->DropAll("default", false).value();
    EXPECT_EQ(dropped.dropped, 2u);
    EXPECT_GT(dropped.freed_bytes, 0u);
  }
  const auto store = Open();
  EXPECT_TRUE(store->List("default").empty());
  EXPECT_EQ(store->Stats().tiers.at(1).bytes, 0u);
}

TEST_F(DiskStore, FlippedBitIsNeverServed) {
  { ASSERT_TRUE(KitPublish(Open().get(), model_, prompt_, {192}).ok()); }
  {
    RawDatabase raw(folder_);
    auto [key, value] = raw.All("slices").at(5);
    value[value.size() / 2] ^= 0x04;
    raw.Put("slices", key, value);
  }
  const VerifyReport report = VerifyDataDir(folder_.path()).value();
  ASSERT_EQ(report.problem_count, 1u);
  EXPECT_THAT(report.problems[0], HasSubstr("do not match the recorded digest"));
  // Without a scrub, the fetch finds the damage. While the clock stands still, no read is retried.
  FakeClock clock;
  StoreSeams seams;
  seams.clock = &clock;
  StoreOptions options = DiskOptions(folder_);
  options.scrub.bytes_per_s = 0;
  const auto store = OpenStore(options, std::move(seams)).value();
  EXPECT_TRUE(absl::IsDataLoss(KitFetch(store.get(), model_, prompt_).status()));
  EXPECT_EQ(KitFetch(store.get(), model_, prompt_).value(), 0u);
  const auto explained = store->Explain(KitQuery(model_, prompt_)).value();
  EXPECT_THAT(explained.summary, HasSubstr("a read failed and will be retried"));
}

TEST_F(DiskStore, ManifestWithoutObjectsIsDropped) {
  const KitPrompt other{KitTokens(2, 65), {}};
  {
    const auto store = Open();
    ASSERT_TRUE(KitPublish(store.get(), model_, prompt_, {192}).ok());
    ASSERT_TRUE(KitPublish(store.get(), model_, other, {64}).ok());
  }
  {
    RawDatabase raw(folder_);
    raw.Delete("objects", raw.All("objects").at(3).first);
  }
  for (const bool is_first : {true, false}) {
    const auto store = Open();
    const auto counters = store->Stats().counters;
    EXPECT_EQ(counters.at("recovery_dropped_manifests"), is_first ? 1u : 0u);
    EXPECT_EQ(counters.at("recovery_lost_restore_points"), is_first ? 1u : 0u);
    EXPECT_EQ(counters.at("recovery_collected_objects") > 5, is_first);
    EXPECT_EQ(KitFetch(store.get(), model_, prompt_).value(), 0u);
    EXPECT_EQ(KitFetch(store.get(), model_, other).value(), 64u);
    const auto explained = store->Explain(KitQuery(model_, prompt_)).value();
    EXPECT_EQ(absl::StrContains(explained.summary, "lost: it was acknowledged"), is_first);
  }
}

// A reboot may lose the end of the older of two logs but nothing of the newer one, so that a
// manifest survives without its objects.
TEST_F(DiskStore, UnsyncedLossAfterRebootIsNoDamage) {
  const auto open = [this](BootId boot) {
    StoreSeams seams;
    seams.disk.boot = boot;
    return OpenStore(DiskOptions(folder_), std::move(seams)).value();
  };
  for (const bool stops : {true, false}) {
    { ASSERT_TRUE(KitPublish(open(1).get(), model_, prompt_, {192}).ok()); }
    {
      RawDatabase raw(folder_);
      raw.Delete("objects", raw.All("objects").at(3).first);
    }
    const auto counters = open(stops ? 2 : 1)->Stats().counters;
    EXPECT_EQ(counters.at("recovery_dropped_manifests"), 1u);
    EXPECT_EQ(counters.at("recovery_lost_restore_points"), stops ? 0u : 1u);
    EXPECT_EQ(counters.at("recovery_damage"), 0u);
  }
}

TEST_F(DiskStore, TornManifestIsDropped) {
  { ASSERT_TRUE(KitPublish(Open().get(), model_, prompt_, {192}).ok()); }
  {
    RawDatabase raw(folder_);
    auto [key, value] = raw.All("manifests").at(0);
    raw.Put("manifests", key, value.substr(0, value.size() - 3));
  }
  EXPECT_EQ(VerifyDataDir(folder_.path()).value().problem_count, 1u);
  const auto store = Open();
  EXPECT_EQ(store->Stats().counters.at("recovery_dropped_manifests"), 1u);
  EXPECT_EQ(store->Stats().objects, 0u);
  EXPECT_EQ(KitFetch(store.get(), model_, prompt_).value(), 0u);
}

TEST_F(DiskStore, LockedFolderIsRefused) {
  const auto store = Open();
  const absl::Status refused = TieredStore::Open(DiskOptions(folder_)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(folder_.path()));
}

TEST_F(DiskStore, StartSurvivesGarbageTables) {
  { ASSERT_TRUE(KitPublish(Open().get(), model_, prompt_, {192}).ok()); }
  { RawDatabase flushes(folder_); }
  for (const auto& file : std::filesystem::directory_iterator(folder_.path() + "/db")) {
    if (file.path().extension() != ".sst") continue;
    constexpr size_t kFooterBytes = 53;
    const std::string bytes(file.file_size() - kFooterBytes, 'x');
    std::fstream(file.path(), std::ios::in | std::ios::out | std::ios::binary) << bytes;
  }
  const auto store = Open();
  EXPECT_GE(store->Stats().counters.at("recovery_damage"), 2u);
  EXPECT_EQ(store->Stats().counters.at("recovery_lost_restore_points"), 1u);
  EXPECT_EQ(KitFetch(store.get(), model_, prompt_).value(), 0u);
  ASSERT_TRUE(KitPublish(store.get(), model_, prompt_, {192}).ok());
  EXPECT_EQ(KitFetch(store.get(), model_, prompt_).value(), 192u);
}

TEST_F(DiskStore, StaleSecretFileIsIgnored) {
  // A temporary file of an earlier process with the same id: process ids repeat, in containers with
  // every start.
  std::ofstream(absl::StrCat(folder_.path(), "/secret.", getpid(), ".tmp")) << "torn";
  EXPECT_TRUE(TieredStore::Open(DiskOptions(folder_)).ok());
  EXPECT_TRUE(TieredStore::Open(DiskOptions(folder_)).ok()) << "the same secret";
}

TEST_F(DiskStore, OtherFormatVersionIsRefused) {
  Open().reset();
  for (const uint64_t version : {DiskTier::kFormatVersion - 1, DiskTier::kFormatVersion + 1}) {
    const std::string other = absl::StrCat(version);
    { RawDatabase(folder_).Put("meta", "format_version", other); }
    const absl::Status refused = TieredStore::Open(DiskOptions(folder_)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("format version " + other));
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("reads 9 only; delete the database (rm -r "));
    EXPECT_EQ(VerifyDataDir(folder_.path()).status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST_F(DiskStore, OtherSecretIsRefused) {
  Open().reset();
  const std::string path = folder_.path() + "/secret";
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  Open().reset();
  StoreOptions options = DiskOptions(folder_);
  options.secret_file = folder_.path() + "/other";
  EXPECT_THAT(std::string(TieredStore::Open(options).status().message()), HasSubstr("other"));
  { std::ofstream(options.secret_file) << std::string(64, 'a') << "\n"; }
  ASSERT_EQ(chmod(options.secret_file.c_str(), 0644), 0);
  EXPECT_THAT(std::string(TieredStore::Open(options).status().message()),
              HasSubstr("other users can read it"));
  ASSERT_EQ(chmod(options.secret_file.c_str(), 0600), 0);
  EXPECT_THAT(std::string(TieredStore::Open(options).status().message()),
              HasSubstr("another secret"));
}

TEST_F(DiskStore, DiskFullOfPinsRefusesPublish) {
  StoreOptions options = DiskOptions(folder_, 0);
  options.disk_bytes = 40000;
  options.max_pinned_fraction = 1.0;
  const auto store = TieredStore::Open(options).value();
  absl::Status refused;
  for (uint64_t seed = 0; seed < 20 && refused.ok(); ++seed) {
    refused = KitPublish(store.get(), model_, {KitTokens(seed, 65), {}}, {64}).status();
    for (const RestorePoint& point : store->List("default")) {
      ASSERT_TRUE(store->SetPinned(point.id, "default", true).ok());
    }
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("disk_bytes, 40000"));
}

TEST_F(DiskStore, StagedBytesAreBounded) {
  StoreOptions options = DiskOptions(folder_);
  options.max_staged_bytes = 7000;
  const auto store = TieredStore::Open(options).value();
  const KitPrompt small{KitTokens(1, 65), {}};
  const PublishSpec spec = KitSpec(model_, small, {64});
  {
    // Each session takes 2,048 of the 7,000 bytes, so the fourth session does not fit completely.
    std::vector<std::unique_ptr<PublishSession>> sessions;
    absl::Status refused;
    while (refused.ok() && sessions.size() < 10) {
      sessions.push_back(store->Publish(spec).value());
      refused = KitPutAll(sessions.back().get(), spec, model_, small);
    }
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("max_staged_bytes, 7000"));
    EXPECT_GT(sessions.size(), 1u);
  }
  EXPECT_TRUE(KitPublish(store.get(), model_, small, {64}).ok());
  const KitPrompt large{KitTokens(9, 200), {}};
  EXPECT_EQ(KitPublish(store.get(), model_, large, {48, 96, 144, 192}).status().code(),
            absl::StatusCode::kInvalidArgument)
      << "one that can never fit is refused before it is sent, and not told to retry";
}

}  // namespace
}  // namespace hearth
