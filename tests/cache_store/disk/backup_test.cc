// Tests of backups: they contain all acknowledged data, damaged data is refused, and failures leave
// no partial backup.
#include "cache_store/disk/backup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/rate_limiter.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "cache_store/disk/disk_tier_backup.h"
#include "cache_store/disk/disk_tier_db.h"
#include "cache_store/disk/point_count.h"
#include "cache_store/store/store_seams.h"
#include "proto/byte_codec.h"
#include "proto/kv_layout.h"
#include "tests/support/raw_database.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Backup : public ::testing::Test {
 protected:
  Backup() {
    KitModel geometry;
    // slices of 64 KiB: prompts of 200 tokens are written as tables, prompts of 33 tokens are not
    geometry.head_dim = 512;
    geometry.layer_types = "llg";
    model_ = geometry.Make();
  }
  std::unique_ptr<TieredStore> Open(const std::string& dir) {
    StoreOptions options;
    options.data_dir = dir;
    options.host_bytes = 1 << 20;
    options.disk_bytes = uint64_t{1} << 30;
    StoreSeams seams;
    seams.disk.wait = [](absl::Duration) {};
    return OpenStore(options, std::move(seams)).value();
  }
  static KitPrompt Prompt(uint64_t seed) { return {KitTokens(seed, seed % 2 ? 200 : 33), {}}; }
  static uint32_t Boundary(uint64_t seed) { return seed % 2 ? 192 : 32; }
  void Publish(TieredStore* store, uint64_t first, uint64_t last) {
    for (uint64_t seed = first; seed <= last; ++seed) {
      ASSERT_TRUE(KitPublish(store, model_, Prompt(seed), {16, Boundary(seed)}).ok());
    }
  }
  // Expects that the folder's store returns exact bytes for these prompts or, if !holds, that all
  // are misses.
  void ExpectHolds(const std::string& dir, uint64_t first, uint64_t last, bool holds = true) {
    const auto store = Open(dir);
    for (uint64_t seed = first; seed <= last; ++seed) {
      EXPECT_EQ(KitFetch(store.get(), model_, Prompt(seed)).value(), holds ? Boundary(seed) : 0u)
          << seed;
    }
  }
  std::string At(const char* name) const { return folder_.path() + "/" + name; }
  static void FlipABitOf(const fs::path& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(fs::file_size(path) / 2));
    const char byte = static_cast<char>(file.get() ^ 0x20);
    file.seekp(static_cast<std::streamoff>(fs::file_size(path) / 2));
    file.put(byte);
  }

  const TestFolder folder_;
  Fingerprint model_ = KitModel().Make();
};

TEST_F(Backup, RestoredBackupHasEqualBytesAndPins) {
  {
    const auto store = Open(At("data"));
    Publish(store.get(), 1, 8);
    ASSERT_TRUE(store->SetPinned(store->List("default").at(0).id, "default", true).ok());
  }
  const auto backup = BackUpDataDir(At("data"), At("backup"));
  ASSERT_TRUE(backup.ok()) << backup.status();
  EXPECT_TRUE(backup->has_secret);
  const auto restored = RestoreDataDir(At("backup"), At("again"));
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_TRUE(restored->verified.ok());
  EXPECT_EQ(restored->verified.restore_points, 16u);
  struct stat info {};
  for (const char* secret : {"backup/secret", "again/secret"}) {
    ASSERT_EQ(stat(At(secret).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  ExpectHolds(At("again"), 1, 8);
  EXPECT_EQ(Open(At("again"))->Stats().pinned_bytes, Open(At("data"))->Stats().pinned_bytes);
}

TEST_F(Backup, SecondBackupCopiesOnlyNewData) {
  const auto store = Open(At("data"));
  Publish(store.get(), 1, 9);
  const auto first = store->BackUp(At("backup"));
  ASSERT_TRUE(first.ok()) << first.status();
  Publish(store.get(), 10, 11);
  const auto second = store->BackUp(At("backup"));
  ASSERT_TRUE(second.ok()) << second.status();
  Publish(store.get(), 12, 13);
  EXPECT_EQ(second->id, first->id + 1);
  EXPECT_GT(second->bytes, first->bytes);
  EXPECT_LT(second->new_bytes, second->bytes / 2) << "tables that were there are not copied again";
  ASSERT_TRUE(RestoreDataDir(At("backup"), At("first"), first->id).ok());
  ExpectHolds(At("first"), 1, 9);
  ExpectHolds(At("first"), 10, 11, false);
  ASSERT_TRUE(RestoreDataDir(At("backup"), At("newest")).ok());
  ExpectHolds(At("newest"), 1, 11);
  ExpectHolds(At("newest"), 12, 13, false);
}

TEST_F(Backup, BackupKeepsBackgroundRateLimit) {
  Publish(Open(At("data")).get(), 1, 4);
  std::unique_ptr<Database> db;
  DiskTierOptions options;
  options.background_bytes_per_s = uint64_t{1} << 30;
  ASSERT_TRUE(Database::Open(At("data"), Database::Mode::kOwn, &db, options).ok());
  const auto passed = [&] {
    return static_cast<uint64_t>((*db)->GetDBOptions().rate_limiter->GetTotalBytesThrough());
  };
  const uint64_t before = passed();
  const auto report = BackUpDatabase(*db, At("data"), At("backup"));
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_GT(report->new_bytes, uint64_t{1} << 20);
  EXPECT_GE(passed() - before, report->new_bytes);
}

TEST_F(Backup, UnrelatedFolderIsRefused) {
  Open(At("data")).reset();
  Open(At("other")).reset();
  fs::create_directory(At("full"));
  std::ofstream(At("full/file")) << "mine";
  const auto refused = [](const absl::Status& status, const char* why) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  refused(BackUpDataDir(At("data"), At("full")).status(), "neither empty nor a backup");
  refused(BackUpDataDir(At("full"), At("backup")).status(), "not a data folder of a store");
  refused(BackUpDataDir(At("data"), At("no/such/parent")).status(), "No such file");
  ASSERT_TRUE(BackUpDataDir(At("data"), At("backup")).ok());
  refused(BackUpDataDir(At("other"), At("backup")).status(), "another store");
  refused(RestoreDataDir(At("backup"), At("full")).status(), "is not empty");
  refused(RestoreDataDir(At("full"), At("again")).status(), "is not a backup");
  refused(RestoreDataDir(At("backup"), At("again"), 7).status(), "no backup 7");
  EXPECT_FALSE(fs::exists(At("again"))) << "a refusal leaves nothing behind";
  EXPECT_FALSE(fs::exists(At("again.restoring")));
  const auto store = Open(At("data"));
  refused(BackUpDataDir(At("data"), At("backup")).status(), "held by another process");
}

TEST_F(Backup, DamagedBackupIsNotRestored) {
  Publish(Open(At("data")).get(), 1, 6);
  ASSERT_TRUE(BackUpDataDir(At("data"), At("backup")).ok());
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(At("backup"))) {
    const bool counts = entry.is_regular_file() && entry.file_size() > 0 &&
                        entry.path().filename() != "secret" &&
                        entry.path().filename() != "LOCK_FILE";
    if (counts) files.push_back(entry.path());
  }
  ASSERT_GT(files.size(), 5u);
  for (const fs::path& path : files) {
    FlipABitOf(path);
    const absl::Status refused = RestoreDataDir(At("backup"), At("again")).status();
    EXPECT_FALSE(refused.ok()) << path;
    EXPECT_FALSE(fs::exists(At("again"))) << path;
    EXPECT_FALSE(fs::exists(At("again.restoring"))) << path;
    FlipABitOf(path);
  }
  EXPECT_TRUE(RestoreDataDir(At("backup"), At("again")).ok());
}

TEST_F(Backup, DamagedBackupErrorNamesTheFile) {
  Publish(Open(At("data")).get(), 1, 3);
  ASSERT_TRUE(BackUpDataDir(At("data"), At("backup")).ok());
  const auto refusal = [&] {
    const absl::Status refused = RestoreDataDir(At("backup"), At("again")).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << refused;
    const std::string text(refused.message());
    EXPECT_THAT(text, AllOf(HasSubstr("backup 1 in "), HasSubstr("is damaged: "),
                            Not(HasSubstr("Corruption")), Not(HasSubstr("checksum is")),
                            HasSubstr("the folder has no other backup")));
    return text;
  };
  fs::path table;
  for (const auto& entry : fs::directory_iterator(At("backup") + "/shared_checksum")) {
    table = entry.path();
  }
  FlipABitOf(table);
  EXPECT_THAT(refusal(), HasSubstr("its bytes differ from those written"));
  fs::remove(table);
  EXPECT_THAT(refusal(), HasSubstr(table.string() + " is missing"));
  std::ofstream(At("backup") + "/meta/1") << "xx";
  EXPECT_THAT(refusal(), HasSubstr("/meta/1 differs from what was written"));
}

TEST_F(Backup, BackupAcceptsRelativePath) {
  Publish(Open(At("data")).get(), 1, 2);
  const std::string relative = fs::relative(At("backup")).string();
  ASSERT_FALSE(fs::path(relative).is_absolute());
  EXPECT_TRUE(BackUpDataDir(At("data"), relative).ok());
  EXPECT_TRUE(RestoreDataDir(relative, At("again")).ok());
  ExpectHolds(At("again"), 1, 2);
}

TEST_F(Backup, InterruptedBackupIsReplaced) {
  Publish(Open(At("data")).get(), 1, 4);
  // Make the folder look as if a process died while copying: it has files, but no list of files.
  ASSERT_TRUE(BackUpDataDir(At("data"), At("backup")).ok());
  fs::rename(At("backup/meta/1"), At("backup/meta/1.tmp"));
  const absl::Status none = RestoreDataDir(At("backup"), At("again")).status();
  EXPECT_THAT(std::string(none.message()), HasSubstr("holds no backup"));
  const auto next = BackUpDataDir(At("data"), At("backup"));
  ASSERT_TRUE(next.ok()) << next.status();
  ASSERT_TRUE(RestoreDataDir(At("backup"), At("again")).ok());
  ExpectHolds(At("again"), 1, 4);
}

// Damage in a log loses all later records. A start tolerates that after a reboot, but a backup must
// refuse it.
TEST_F(Backup, CorruptLogIsNotBackedUp) {
  Publish(Open(At("data")).get(), 1, 8);
  for (const auto& entry : fs::directory_iterator(At("data/db"))) {
    if (entry.path().extension() == ".log" && entry.file_size() > 0) FlipABitOf(entry.path());
  }
  for (const bool is_rebooted : {false, true}) {
    if (is_rebooted) {
      const PointCount::Noted noted = PointCount::Read(At("data"));
      ASSERT_EQ(noted.points, 16u);
      std::string bytes;
      for (const uint64_t value : {noted.points, noted.drops, noted.boot + 1}) {
        AppendU64(&bytes, value);
      }
      AppendU64(&bytes, SliceDigest(bytes.data(), bytes.size()));
      std::ofstream(At("data/points"), std::ios::binary) << bytes;
      ASSERT_NE(PointCount::Read(At("data")).boot, noted.boot);
    }
    const absl::Status refused = BackUpDataDir(At("data"), At("backup")).status();
    EXPECT_TRUE(absl::IsDataLoss(refused)) << is_rebooted << refused;
  }
}

// The backup is refused, because it could displace older backups that still have the lost entries.
TEST_F(Backup, DamageFoundAtStartRefusesBackup) {
  Publish(Open(At("data")).get(), 1, 8);
  FlipABitOf(At("data/db/CURRENT"));
  {
    const auto store = Open(At("data"));
    EXPECT_GT(store->Stats().counters.at("recovery_damage"), 0u);
    const absl::Status refused = store->BackUp(At("backup")).status();
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("start the store again"));
    Publish(store.get(), 9, 9);
  }
  const auto store = Open(At("data"));
  const auto made = store->BackUp(At("backup"));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(RestoreDataDir(At("backup"), At("again")).value().verified.ok());
}

TEST_F(Backup, OnlyNewestBackupsAreKept) {
  const auto store = Open(At("data"));
  uint32_t newest = 0;
  for (uint64_t seed = 1; seed <= kKeptBackups + 2; ++seed) {
    Publish(store.get(), seed, seed);
    newest = store->BackUp(At("backup")).value().id;
  }
  EXPECT_FALSE(RestoreDataDir(At("backup"), At("old"), newest - kKeptBackups).ok());
  EXPECT_TRUE(RestoreDataDir(At("backup"), At("oldest"), newest - kKeptBackups + 1).ok());
}

}  // namespace
}  // namespace hearth
