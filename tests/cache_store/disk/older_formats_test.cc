// Folders as earlier programs left them: each reads as it was stored, and is raised to the format
// of now.
//
// golden/formatN was written by the last commit of disk format N: 1 is 344992f^, 2 caeb990^,
// 3 5a6bb64^. Each published with KitPublish, of 100 tokens of a seed: seed 1 at 64 and 96; seed 2
// of tenant acme at 96, pinned; seed 1 of the model w1 at 80; seed 4 at 96 of a model with 1 MiB of
// it, so that format 2 made a table, of bytes that format 3, told to, stored compressed
// (Patterned); seed 3 at 96, dropped again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/disk/verify.h"
#include "tests/support/raw_database.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

class OlderFormats : public ::testing::TestWithParam<int> {
 protected:
  // Git does not keep the secret's mode.
  OlderFormats() {
    const fs::path golden = absl::StrCat(HEARTH_STORE_GOLDEN_DIR, "/format", GetParam());
    fs::copy(golden, folder_.path(), fs::copy_options::recursive);
    fs::permissions(folder_.path() + "/secret", fs::perms::owner_read | fs::perms::owner_write);
  }
  std::string StoredVersion() {
    for (const auto& [key, value] : RawDatabase(folder_).All("meta")) {
      if (key == "format_version") return value;
    }
    return "";
  }
  std::unique_ptr<TieredStore> Open() {
    StoreOptions options;
    options.data_dir = folder_.path();
    options.host_bytes = 1 << 20;
    options.disk_bytes = 64 << 20;
    return TieredStore::Open(options).value();
  }
  static KitPrompt Prompt(uint64_t seed, const std::string& tenant = "default") {
    return {KitTokens(seed, 100), {}, tenant};
  }
  void ExpectAllThere(TieredStore* store) {
    const Fingerprint model = KitModel().Make();
    KitModel other;
    other.weights = "w1";
    EXPECT_EQ(KitFetch(store, model, Prompt(1)).value(), 96u);
    EXPECT_EQ(KitFetch(store, model, Prompt(2, "acme")).value(), 96u);
    EXPECT_EQ(KitFetch(store, other.Make(), Prompt(1)).value(), 80u);
    EXPECT_EQ(KitFetch(store, model, Prompt(3)).value(), 0u) << "dropped";
    EXPECT_EQ(KitFetch(store, model, Prompt(2)).value(), 0u) << "another tenant's";
    ExpectPatterned(store);
    EXPECT_EQ(store->List("default").size(), 4u);
    const std::vector<RestorePoint> pinned = store->List("acme");
    ASSERT_EQ(pinned.size(), 1u);
    EXPECT_TRUE(pinned[0].pinned);
  }
  static void ExpectPatterned(TieredStore* store) {
    KitModel large;
    large.head_dim = 1024;
    const auto session = store->Fetch(KitQuery(large.Make(), Prompt(4)), 0, 0).value();
    const LookupPlan& plan = session->plan();
    ASSERT_EQ(plan.usable_tokens, 96u);
    for (size_t i = 0; i < plan.objects.size(); ++i) {
      for (const uint32_t layer : plan.layout.LayersOf(plan.objects[i].id.group)) {
        const SliceView slice = session->ReadSlice(i, layer).value();
        for (size_t at = 0; at < slice.bytes.size(); ++at) {
          const auto byte = static_cast<std::byte>(at % 4 == 3 ? 0x3d : at / 64 + layer);
          ASSERT_EQ(slice.bytes[at], byte) << at;
        }
      }
    }
  }
  const TestFolder folder_;
};

TEST_P(OlderFormats, AreReadAsTheyAreAndRaised) {
  ASSERT_EQ(StoredVersion(), absl::StrCat(GetParam()));
  const VerifyReport report = VerifyDataDir(folder_.path()).value();
  EXPECT_TRUE(report.ok()) << report.problems[0];
  EXPECT_EQ(report.restore_points, 5u);
  EXPECT_EQ(StoredVersion(), absl::StrCat(GetParam())) << "verifying changes nothing";
  for (int round = 0; round < 2; ++round) {
    const auto store = Open();
    ExpectAllThere(store.get());
    EXPECT_EQ(store->Stats().counters.at("recovered_restore_points"), 5u);
    EXPECT_EQ(store->Stats().counters.at("recovery_dropped_manifests"), 0u);
    EXPECT_EQ(store->Stats().counters.at("recovery_lost_restore_points"), 0u);
    EXPECT_EQ(store->Stats().counters.at("recovery_damage"), 0u);
  }
  EXPECT_EQ(StoredVersion(), absl::StrCat(DiskTier::kFormatVersion));
}

// New points in such a folder share its objects, and stay with them.
TEST_P(OlderFormats, TakeWhatComesLater) {
  const Fingerprint model = KitModel().Make();
  {
    const auto store = Open();
    ASSERT_TRUE(KitPublish(store.get(), model, {KitTokens(1, 200), {}}, {192}).ok());
  }
  const auto store = Open();
  EXPECT_EQ(KitFetch(store.get(), model, {KitTokens(1, 200), {}}).value(), 192u);
  EXPECT_EQ(KitFetch(store.get(), model, Prompt(1)).value(), 96u);
  EXPECT_EQ(store->List("default").size(), 5u);
}

INSTANTIATE_TEST_SUITE_P(Disk, OlderFormats, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace hearth
