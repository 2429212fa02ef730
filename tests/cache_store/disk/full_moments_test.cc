// A disk that becomes full at a random moment: stored restore points are served, publishes are
// refused with the reason, and a start on the full disk works. When the disk has space again,
// publishes succeed without any other action. Runs on a simulated disk and, if the test may mount
// them, on real small file systems. Moments are chosen by a seed; HEARTH_FULL_MOMENTS=N tries N
// moments on the simulated disk, and N / 6 on each file system.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "absl/strings/match.h"
#include "cache_store/disk/disk_tier_db.h"
#include "cache_store/disk/verify.h"
#include "cache_store/store/store_seams.h"
#include "tests/support/small_disk.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_checks.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

uint64_t MomentsFrom(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class Moment {
 public:
  Moment(SmallDisk* disk, uint64_t seed) : disk_(disk), random_(seed) {
    for (const uint32_t head_dim : {2u, 64u, 1024u}) {
      KitModel geometry;
      geometry.head_dim = head_dim;
      models_.push_back(geometry.Make());
    }
  }

  void Run() {
    Open();
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(Publish().ok());
    disk_->SetRoom(random_() % (12 * kMiB) * (random_() % 4));
    int refused = 0;
    // Publish until publishes are refused: about 60 MiB in 120 publishes, of which a file system
    // may absorb a part without allocating blocks.
    for (int i = 0; i < 1000 && refused < 3; ++i) refused += Refuses() ? 1 : 0;
    ASSERT_EQ(refused, 3) << "it was never full";
    CheckServes("while full");
    if (random_() % 2 == 0) {
      // Restart the store on the full disk.
      if (random_() % 2 == 0) disk_->Kill();
      store_.reset();
      disk_->Restart();
      Open();
      ASSERT_NE(store_, nullptr);
      CheckServes("after a start while full");
      for (int i = 0; i < 3; ++i) Refuses();
      CheckServes("after a start while full, and more publishes");
    }
    disk_->SetAmple();
    absl::Status taken = Publish();
    if (!taken.ok()) taken = Publish();
    EXPECT_TRUE(taken.ok()) << "with room again: " << taken;
    CheckServes("with room again");
    CheckInvariants(store_.get());
    store_.reset();
    Open();
    ASSERT_NE(store_, nullptr);
    CheckServes("after the last start");
    EXPECT_EQ(store_->Stats().counters.at("recovery_damage"), 0u);
    EXPECT_EQ(store_->Stats().counters.at("recovery_lost_restore_points"), 0u);
    store_.reset();
    EXPECT_TRUE(std::filesystem::is_empty(disk_->path() + kTablesFolder)) << "a table is left";
  }

 private:
  void Open() {
    StoreOptions options;
    options.data_dir = disk_->path();
    options.host_bytes = 0;
    options.disk_bytes = uint64_t{1} << 30;
    StoreSeams seams = SteppedSeams(&executor_);
    seams.disk.env = disk_->env();
    absl::StatusOr<std::unique_ptr<TieredStore>> opened = OpenStore(options, std::move(seams));
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }
  // Publishes a prompt of one of two models: small slices go through the log, large slices become
  // tables.
  absl::Status Publish() {
    const size_t model = random_() % models_.size();
    const KitPrompt prompt{KitTokens(++seed_, 65), {}};
    const auto level = random_() % 4 == 0 ? Durability::kSync : Durability::kDisk;
    const absl::Status status =
        KitPublish(store_.get(), models_[model], prompt, {64}, level).status();
    if (status.ok()) promised_.emplace_back(model, seed_);
    if (random_() % 4 == 0) executor_->RunAll();
    return status;
  }
  bool Refuses() {
    const absl::Status status = Publish();
    if (status.ok()) return false;
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "No space left on device")) << status;
    return true;
  }
  void CheckServes(const char* when) {
    for (const auto& [model, seed] : promised_) {
      const KitPrompt prompt{KitTokens(seed, 65), {}};
      const absl::StatusOr<uint32_t> usable = KitFetch(store_.get(), models_[model], prompt);
      EXPECT_TRUE(usable.ok() && *usable == 64)
          << "acknowledged, " << when << ": " << usable.status();
    }
  }

  SmallDisk* const disk_;
  std::mt19937_64 random_;
  std::vector<Fingerprint> models_;
  uint64_t seed_ = 0;
  std::vector<std::pair<size_t, uint64_t>> promised_;  // acknowledged publishes: model, seed
  ManualExecutor* executor_ = nullptr;
  std::unique_ptr<TieredStore> store_;
};

TEST(FullMoments, RandomlyFullDiskKeepsAcknowledgedPoints) {
  const uint64_t first = MomentsFrom("HEARTH_FULL_FIRST", 1);
  const uint64_t end = first + MomentsFrom("HEARTH_FULL_MOMENTS", 42);
  for (uint64_t seed = first; seed < end && !HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "HEARTH_FULL_FIRST=" << seed);
    InjectedDisk disk;
    Moment(&disk, seed).Run();
  }
}

// Creates a database as it is after a store wrote faster than it could flush: it has logs that were
// not flushed.
void WriteUnflushed(const std::string& path, int memtables, size_t memtable_bytes) {
  rocksdb::Options options;
  options.create_if_missing = options.create_missing_column_families = true;
  options.avoid_flush_during_shutdown = true;
  options.allow_fallocate = false;
  options.info_log_level = rocksdb::FATAL_LEVEL;
  options.write_buffer_size = memtable_bytes;
  options.max_write_buffer_number = memtables + 2;
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const char* name : kFamilyNames) families.emplace_back(name, options);
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  ASSERT_TRUE(rocksdb::DB::Open(options, path, families, &handles, &db).ok());
  ASSERT_TRUE(db->PauseBackgroundWork().ok());
  const std::string value(64 << 10, 'v');
  for (int i = 0; i < memtables * static_cast<int>(memtable_bytes / value.size()); ++i) {
    for (auto* family : handles) {
      const rocksdb::Status put = db->Put({}, family, absl::StrCat("note/", i), value);
      ASSERT_TRUE(put.ok()) << put.ToString();
    }
  }
  for (auto* family : handles) {
    uint64_t waiting = 0;
    db->GetIntProperty(family, rocksdb::DB::Properties::kNumImmutableMemTable, &waiting);
    EXPECT_GE(waiting + 1, memtables) << family->GetName();
    db->DestroyColumnFamilyHandle(family);
  }
  delete db;
}

class FullMounts : public ::testing::TestWithParam<const char*> {};

TEST_P(FullMounts, FullRealVolumeKeepsAcknowledgedPoints) {
  const uint64_t first = MomentsFrom("HEARTH_FULL_FIRST", 1);
  const uint64_t end = first + MomentsFrom("HEARTH_FULL_MOMENTS", 42) / 6;
  for (uint64_t seed = first; seed < end && !HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "HEARTH_FULL_FIRST=" << seed);
    MountedDisk disk(GetParam());
    if (!disk.why_not().empty()) GTEST_SKIP() << GetParam() << ": " << disk.why_not();
    Moment(&disk, seed).Run();
  }
}

TEST_P(FullMounts, StartOnFullVolumeWritesNoTable) {
  MountedDisk disk(GetParam(), 160);
  if (!disk.why_not().empty()) GTEST_SKIP() << GetParam() << ": " << disk.why_not();
  const std::string db_path = disk.path() + "/db";
  ASSERT_EQ(mkdir(disk.path().c_str(), 0700) | mkdir(db_path.c_str(), 0700), 0);
  WriteUnflushed(db_path, /*memtables=*/4, /*memtable_bytes=*/size_t{3} << 20);
  disk.SetRoom(kReserveBytes);
  std::unique_ptr<Database> db;
  const absl::Status opened = Database::Open(disk.path(), Database::Mode::kOwn, &db);
  ASSERT_TRUE(opened.ok()) << opened;
  for (const auto& file : std::filesystem::directory_iterator(db_path)) {
    const std::string kind = file.path().extension();
    EXPECT_TRUE(kind != ".sst" && kind != ".blob") << file.path();
  }
  std::string value;
  EXPECT_TRUE((*db)->Get({}, db->family(kObjects), "note/0", &value).ok());
  EXPECT_TRUE((*db)->Get({}, db->family(kMeta), "note/150", &value).ok());
}

INSTANTIATE_TEST_SUITE_P(Kinds, FullMounts, ::testing::Values("tmpfs", "ext4"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace hearth
