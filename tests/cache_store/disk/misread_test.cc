// A disk whose reads are wrong or fail for some seconds, although the bytes on disk are correct: no
// acknowledged restore point is lost, neither in use nor at a start. Permanent damage is
// quarantined.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_store/disk/files/recovery_files.h"
#include "cache_store/disk/verify.h"
#include "tests/support/raw_database.h"
#include "tests/support/stepped_store.h"
#include "tests/support/store_checks.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct BadMoment {
  const char* name;
  DiskFault fault;
  int per_mille;
  int seconds;
  // true: slices of 16 KiB in tables; false: small slices, in the log and in the files flushed from
  // it
  bool in_tables;
};
constexpr BadMoment kBadMoments[] = {
    {"OneBitInOneReadOfFiftyOfTables", DiskFault::kFlippedBit, 20, 8, true},
    {"OneBitInOneReadOfFifty", DiskFault::kFlippedBit, 20, 8, false},
    {"AllReadsOfTablesWrong", DiskFault::kFlippedBit, 1000, 2, true},
    {"AllReadsWrong", DiskFault::kFlippedBit, 1000, 2, false},
    {"OneErrorInTwentyReadsOfTables", DiskFault::kFailedRead, 50, 8, true},
    {"OneErrorInTwentyReads", DiskFault::kFailedRead, 50, 8, false},
};

class MisreadFixture : public FaultyDiskFixture {
 protected:
  MisreadFixture() {
    options_.scrub.bytes_per_s = 64 * kMiB;
    options_.scrub.period = absl::Seconds(2);
  }
  StoreSeams Seams() override {
    StoreSeams seams = FaultyDiskFixture::Seams();
    if (in_tables_) seams.min_table_bytes = 1;
    // The pauses of a start advance the test's clock, and the disk recovers at a set time.
    seams.disk.wait = [this](absl::Duration pause) {
      clock_.Advance(pause);
      if (clock_.Now() >= well_at_) Heal();
    };
    return seams;
  }
  void UseTables(bool in_tables) {
    KitModel geometry;
    if (in_tables) geometry.head_dim = 128;
    in_tables_ = in_tables;
    model_ = geometry.Make();
  }
  void Break(DiskFault fault, int per_mille, int seconds) {
    disk_.SetShare(fault, per_mille);
    well_at_ = clock_.Now() + absl::Seconds(seconds);
  }
  void Heal() {
    for (const DiskFault fault : {DiskFault::kFlippedBit, DiskFault::kFailedRead}) {
      disk_.SetShare(fault, 0);
    }
  }
  // All prompts have a common prefix, so that losing one of its objects would lose all restore
  // points.
  static KitPrompt Prompt(uint64_t seed) {
    std::vector<uint32_t> tokens = KitTokens(0, 32);
    const std::vector<uint32_t> own = KitTokens(seed, 33);
    tokens.insert(tokens.end(), own.begin(), own.end());
    return {std::move(tokens), {}};
  }
  // Publishes a prompt, and remembers it if it was acknowledged.
  absl::Status Publish() {
    const uint64_t seed = ++seed_;
    const absl::Status status =
        KitPublish(store_.get(), model_, Prompt(seed), {64}, Durability::kSync).status();
    if (status.ok()) acknowledged_.push_back(seed);
    return status;
  }
  // Returns the number of usable tokens, 0 for an error or a miss. Expects exact bytes.
  uint32_t Fetch(uint64_t seed) { return KitFetch(store_.get(), model_, Prompt(seed)).value_or(0); }
  void PublishSome() {
    for (int i = 0; i < 12; ++i) ASSERT_TRUE(Publish().ok());
    // Drop a prompt: the drop causes a flush, so the restore points are then read from files, not
    // from memory.
    ASSERT_TRUE(KitPublish(store_.get(), model_, {KitTokens(1000, 65), {}}, {64}).ok());
    for (const RestorePoint& point : store_->List("default")) {
      if (point.last_token_ids.back() != KitTokens(1000, 64).back()) continue;
      ASSERT_TRUE(store_->Drop(point.id, "default", true).ok());
    }
    // The next start reads these restore points from the write-ahead log.
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(Publish().ok());
  }
  // Fetches, publishes and scrubs for half a second of the test's clock.
  void UseForAMoment() {
    for (const uint64_t seed : std::vector<uint64_t>(acknowledged_)) Fetch(seed);
    Publish().IgnoreError();
    for (int step = 0; step < 4; ++step) stepped()->ScrubStep();
    executor_->RunAll();
    clock_.Advance(absl::Milliseconds(500));
  }
  void ExpectAllServed() {
    clock_.Advance(StoredObject::kLongestHidden);
    for (const uint64_t seed : acknowledged_) {
      const auto fetched = KitFetch(store_.get(), model_, Prompt(seed));
      EXPECT_EQ(fetched.value_or(0), 64u) << seed << ": " << fetched.status();
    }
    EXPECT_EQ(Counted("quarantined_objects"), 0u);
    CheckInvariants(store_.get());
  }

  bool in_tables_ = false;
  absl::Time well_at_ = absl::InfinitePast();
  uint64_t seed_ = 0;
  std::vector<uint64_t> acknowledged_;
};

class Misread : public MisreadFixture, public ::testing::TestWithParam<BadMoment> {
 protected:
  Misread() { UseTables(GetParam().in_tables); }
  void Break() {
    MisreadFixture::Break(GetParam().fault, GetParam().per_mille, GetParam().seconds);
  }
};

TEST_P(Misread, ReadErrorsInUseLoseNoPoint) {
  for (const uint64_t host_bytes : {uint64_t{0}, 4 * kMiB}) {
    options_.host_bytes = host_bytes;
    Open();
    PublishSome();
    Break();
    while (clock_.Now() < well_at_) UseForAMoment();
    Heal();
    EXPECT_TRUE(Publish().ok()) << "within five seconds: at once";
    ExpectAllServed();
    Open();
    EXPECT_EQ(Counted("recovery_lost_restore_points"), 0u);
    ExpectAllServed();
  }
  EXPECT_GT(disk_.struck(), 0);
}

TEST_P(Misread, StartDuringReadErrorsLosesNoPoint) {
  Open();
  PublishSome();
  for (int round = 0; round < 5; ++round) {
    store_.reset();
    Break();
    absl::Status opened = TryOpen();
    for (; !opened.ok() && clock_.Now() < well_at_; opened = TryOpen()) {
      EXPECT_EQ(opened.code(), absl::StatusCode::kUnavailable) << opened;
      // the pause of a supervisor before it starts the store again
      clock_.Advance(absl::Seconds(1));
    }
    Heal();
    if (!opened.ok()) Open();
    EXPECT_EQ(Counted("recovery_lost_restore_points"), 0u);
    EXPECT_EQ(Counted("recovery_dropped_manifests"), 0u);
    // the first start left manifests alone that it could not read
    if (Counted("recovery_unread_manifests") > 0) Open();
    ExpectAllServed();
    EXPECT_TRUE(Publish().ok());
  }
  EXPECT_THAT(lines_, Not(Contains(HasSubstr("it was moved to"))));
}

INSTANTIATE_TEST_SUITE_P(Moments, Misread, ::testing::ValuesIn(kBadMoments),
                         [](const auto& info) { return std::string(info.param.name); });

class Misreads : public MisreadFixture, public ::testing::Test {
 protected:
  Misreads() { UseTables(true); }
  // Returns the bytes of one slice of a prompt's last chunk, as they are on disk.
  std::string SliceOf(uint64_t seed) {
    const SliceView slice = KitSlice(model_, Prompt(seed), {48, 16, LayerGroup::kGlobal}, 2);
    return {reinterpret_cast<const char*>(slice.bytes.data()), slice.bytes.size()};
  }
};

TEST_F(Misreads, PermanentDamageQuarantinesOnlyItsObject) {
  Open();
  PublishSome();
  Break(DiskFault::kFlippedBit, 20, 8);
  while (clock_.Now() < well_at_) UseForAMoment();
  Heal();
  ExpectAllServed();
  ASSERT_EQ(FlipBitsOnDisk(folder_, SliceOf(2)), 1);
  // Read other objects too: their successful reads must not delay the quarantine.
  for (int i = 0; i < 200 && Counted("quarantined_objects") == 0; ++i) {
    Fetch(2);
    clock_.Advance(absl::Milliseconds(100));
  }
  EXPECT_EQ(Counted("quarantined_objects"), 1u);
  EXPECT_THAT(lines_, Contains(HasSubstr("is quarantined")));
  for (const uint64_t seed : acknowledged_) EXPECT_EQ(Fetch(seed), seed == 2 ? 0u : 64u) << seed;
  ASSERT_TRUE(KitPublish(store_.get(), model_, Prompt(2), {64}).ok());
  EXPECT_EQ(Fetch(2), 64u) << "healed by the next publish";
}

// Each read of a slice gives different wrong bytes, so the bytes on disk are not damaged.
TEST_F(Misreads, VaryingMisreadsAreNotDamage) {
  options_.scrub.bytes_per_s = 0;
  Open();
  ASSERT_TRUE(Publish().ok());
  disk_.SetShare(DiskFault::kFlippedBit, 1000);
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(Fetch(1), 0u);
    clock_.Advance(StoredObject::kLongestHidden);
  }
  Heal();
  ExpectAllServed();
}

// A bad cable may flip the same bit in each read, so equal wrong bytes are no proof of damage if
// many objects fail.
TEST_F(Misreads, ManyFailingObjectsAreKept) {
  options_.scrub.bytes_per_s = 0;
  Open();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Publish().ok());
  for (const uint64_t seed : acknowledged_) ASSERT_EQ(FlipBitsOnDisk(folder_, SliceOf(seed)), 1);
  const auto fetch_all = [&] {
    for (const uint64_t seed : acknowledged_) EXPECT_EQ(Fetch(seed), 0u);
    clock_.Advance(StoredObject::kLongestHidden);
  };
  for (int i = 0; i < 20; ++i) fetch_all();
  EXPECT_EQ(Counted("quarantined_objects"), 0u);
  EXPECT_THAT(lines_, Contains(HasSubstr("no object is quarantined")));
  for (const uint64_t seed : acknowledged_) {
    std::string rotten = SliceOf(seed);
    rotten[rotten.size() / 2] ^= 0x10;
    ASSERT_EQ(FlipBitsOnDisk(folder_, rotten), 1);  // flips the damaged bit back
  }
  ExpectAllServed();
}

TEST_F(Misreads, ScrubWaitsWhileDiskMisreads) {
  Open();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Publish().ok());
  for (const DiskFault fault : {DiskFault::kFlippedBit, DiskFault::kFailedRead}) {
    SCOPED_TRACE(static_cast<int>(fault));
    disk_.SetShare(fault, 1000);
    const uint64_t bytes = Counted("scrubbed_bytes");
    absl::Duration longest;
    for (int step = 0; step < 200; ++step) {
      const absl::Duration pause = stepped()->ScrubStep();
      if (pause < options_.scrub.period) longest = std::max(longest, pause);
      clock_.Advance(std::min(pause, options_.scrub.period));
      executor_->RunAll();
    }
    EXPECT_GT(Counted("scrubbed_bytes"), bytes) << "it tries";
    if (fault == DiskFault::kFlippedBit) {
      EXPECT_GE(longest, absl::Seconds(1)) << "and waits";
    }
    EXPECT_EQ(Counted("quarantined_objects"), 0u);
    EXPECT_EQ(store_->List("default").size(), acknowledged_.size());
    Heal();
    const uint64_t passes = Counted("scrub_passes");
    for (int step = 0; step < 1000 && Counted("scrub_passes") < passes + 2; ++step) {
      clock_.Advance(stepped()->ScrubStep());
    }
    EXPECT_EQ(Counted("scrub_passes"), passes + 2);
    ExpectAllServed();
  }
}

// While the disk misreads, a fetch returns exact bytes, an error, or a shorter hit that Explain
// explains. The restore point stays listed.
TEST_F(Misreads, PointStaysListedAfterMisread) {
  options_.scrub.bytes_per_s = 0;
  Open();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Publish().ok());
  const std::vector<RestorePoint> points = store_->List("default");
  for (const DiskFault fault : {DiskFault::kFlippedBit, DiskFault::kFailedRead}) {
    disk_.SetShare(fault, 100);
    int right = 0, failed = 0, hidden = 0;
    for (int round = 0; round < 20; ++round) {
      for (const uint64_t seed : acknowledged_) {
        const auto fetched = KitFetch(store_.get(), model_, Prompt(seed));
        if (!fetched.ok()) {
          EXPECT_EQ(fetched.status().code(), fault == DiskFault::kFlippedBit
                                                 ? absl::StatusCode::kDataLoss
                                                 : absl::StatusCode::kUnavailable)
              << fetched.status();
          ++failed;
        } else if (*fetched == 64) {
          ++right;
        } else {
          ++hidden;
          EXPECT_THAT(store_->Explain(KitQuery(model_, Prompt(seed))).value().summary,
                      HasSubstr("a read failed and will be retried"));
        }
      }
      for (const RestorePoint& point : points) {
        EXPECT_TRUE(store_->FetchById(point.id, "default").ok());
      }
      clock_.Advance(absl::Seconds(1));
    }
    EXPECT_TRUE(right > 0 && failed > 0 && hidden > 0) << right << " " << failed << " " << hidden;
    EXPECT_EQ(store_->List("default").size(), points.size());
    Heal();
    ExpectAllServed();
  }
}

TEST_F(Misreads, VerifyReportsMisreadsApartFromDamage) {
  Open();
  PublishSome();
  store_.reset();
  VerifyOptions options;
  options.env = disk_.env();
  int waits = 0;
  options.wait = [&](absl::Duration) {
    if (++waits == 3) Heal();
  };
  const auto verify = [&] {
    waits = 0;
    return VerifyDataDir(folder_.path(), options);
  };
  for (const bool is_rotten : {false, true}) {
    if (is_rotten) {
      ASSERT_EQ(FlipBitsOnDisk(folder_, SliceOf(2)), 1);
    }
    disk_.SetShare(DiskFault::kFlippedBit, 20);
    const absl::StatusOr<VerifyReport> misread = verify();
    ASSERT_TRUE(misread.ok()) << misread.status();
    EXPECT_GT(misread->misread_count, 0u);
    EXPECT_THAT(misread->misreads, Each(HasSubstr("a second read gave different bytes")));
    Heal();
    const absl::StatusOr<VerifyReport> sound = verify();
    ASSERT_TRUE(sound.ok()) << sound.status();
    EXPECT_EQ(sound->misread_count, 0u);
    for (const auto& report : {*misread, *sound}) {
      EXPECT_EQ(report.problem_count, is_rotten ? 1u : 0u);
      EXPECT_EQ(report.restore_points, acknowledged_.size());
      EXPECT_EQ(report.slices, sound->slices);
    }
    if (is_rotten) {
      EXPECT_THAT(sound->problems,
                  ElementsAre(HasSubstr("do not match the recorded digest; they have digest")));
    }
  }
}

TEST_F(Misreads, RamCopySurvivesDiskErrors) {
  options_.scrub.bytes_per_s = 0;
  options_.host_bytes = 4 * kMiB;
  // small slices: RAM keeps the memory into which they were read, so the disk is not read again
  UseTables(false);
  Open();
  PublishSome();
  Open();
  // this session will read from disk later
  auto early = store_->Fetch(KitQuery(model_, Prompt(1)), 0, 0).value();
  ASSERT_EQ(Fetch(1), 64u);
  executor_->RunAll();  // promotes the objects to RAM
  disk_.SetShare(DiskFault::kFailedRead, 1000);
  for (int i = 0; i < 30; ++i) {
    EXPECT_FALSE(early->ReadSlice(0, 2).ok());
    clock_.Advance(StoredObject::kLongestHidden);
  }
  EXPECT_EQ(Fetch(1), 64u) << "from RAM";
  early.reset();
  Heal();
  ExpectAllServed();
}

TEST_F(Misreads, OneReadErrorAtStartLosesNothing) {
  UseTables(false);
  Open();
  PublishSome();
  for (int nth = 1; nth <= 40; ++nth) {
    store_.reset();
    const int struck = disk_.struck();
    disk_.Arm(DiskFault::kFailedRead, nth);
    const absl::Status opened = TryOpen();
    disk_.Disarm();
    ASSERT_GT(disk_.struck(), struck) << nth;
    if (!opened.ok()) Open();
    if (Counted("recovery_unread_manifests") > 0) Open();
    ASSERT_EQ(Counted("recovery_lost_restore_points"), 0u) << nth;
    for (const uint64_t seed : acknowledged_) ASSERT_EQ(Fetch(seed), 64u) << nth << ": " << seed;
  }
  EXPECT_THAT(lines_, Not(Contains(HasSubstr("it was moved to"))));
}

// The disk begins to misread only after the database was opened.
TEST_F(Misreads, MisreadsLateInStartLoseNothing) {
  UseTables(false);
  Open();
  PublishSome();
  int sound = 0;  // number of correct reads before the errors; the index is read last
  for (bool is_struck = true; is_struck; sound += sound < 120 ? 8 : 1) {
    store_.reset();
    const int struck = disk_.struck();
    disk_.SpareReads(sound);
    Break(DiskFault::kFlippedBit, 1000, 6);
    const absl::Status opened = TryOpen();
    is_struck = disk_.struck() > struck;
    disk_.SpareReads(0);
    Heal();
    if (!opened.ok()) {
      ASSERT_EQ(opened.code(), absl::StatusCode::kUnavailable) << sound << ": " << opened;
      Open();
    }
    ASSERT_EQ(Counted("recovery_lost_restore_points"), 0u) << sound;
    ASSERT_EQ(Counted("recovery_dropped_manifests"), 0u) << sound;
    if (Counted("recovery_unread_manifests") > 0) Open();
    for (const uint64_t seed : acknowledged_) ASSERT_EQ(Fetch(seed), 64u) << sound << ": " << seed;
  }
  EXPECT_GT(sound, 10);
}

// Returns the newest file of the database with this extension that is not empty.
fs::path Newest(const fs::path& db, const std::string& extension) {
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(db)) {
    const bool is_one = entry.path().extension() == extension && entry.file_size() > 0;
    if (is_one) newest = std::max(newest, entry.path());
  }
  return newest;
}

// Kinds of damage that a start repairs.
struct RepairedDamage {
  const char* name;
  void (*hit)(const fs::path& db);
};
const RepairedDamage kRepairedDamage[] = {
    {"TableGone", [](const fs::path& db) { fs::remove(Newest(db, ".sst")); }},
    {"TableCut",
     [](const fs::path& db) {
       const fs::path table = Newest(db, ".sst");
       fs::resize_file(table, fs::file_size(table) - 1);
     }},
    {"CurrentGone", [](const fs::path& db) { fs::remove(db / "CURRENT"); }},
    {"LogFlipped",
     [](const fs::path& db) {
       const fs::path log = Newest(db, ".log");
       std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
       file.seekp(static_cast<std::streamoff>(fs::file_size(log) / 2));
       file.put('!');
     }},
};

class MisreadRecovery : public MisreadFixture, public ::testing::TestWithParam<RepairedDamage> {
 protected:
  MisreadRecovery() { UseTables(true); }
  void CopyFolder(const std::string& from, const std::string& to) {
    store_.reset();
    for (const auto& entry : fs::directory_iterator(to)) fs::remove_all(entry.path());
    fs::copy(from, to, fs::copy_options::recursive);
  }
  std::vector<uint64_t> Served() {
    clock_.Advance(StoredObject::kLongestHidden);
    std::vector<uint64_t> served;
    for (const uint64_t seed : acknowledged_) {
      if (Fetch(seed) == 64) served.push_back(seed);
    }
    return served;
  }
  // Starts a store on a copy of `damaged`, on a disk that misreads after `sound` correct reads. If
  // this start fails, starts again on a healthy disk.
  void Start(const TestFolder& damaged, int per_mille, int sound) {
    CopyFolder(damaged.path(), folder_.path());
    disk_.SpareReads(sound);
    Break(DiskFault::kFlippedBit, per_mille, 12);
    const absl::Status opened = TryOpen();
    disk_.SpareReads(0);
    Heal();
    if (!opened.ok()) {
      EXPECT_EQ(opened.code(), absl::StatusCode::kUnavailable) << opened;
      Open();
    }
    if (Counted("recovery_unread_manifests") > 0) Open();
  }
};

TEST_P(MisreadRecovery, MisreadsDuringRepairLoseNothingMore) {
  Open();
  PublishSome();
  store_.reset();
  GetParam().hit(folder_.path() + "/db");
  const TestFolder damaged;
  CopyFolder(folder_.path(), damaged.path());
  Open();
  const std::vector<uint64_t> left = Served();
  ASSERT_GE(left.size(), 12u);
  EXPECT_GT(Counted("recovery_damage"), 0u);
  for (const int per_mille : {1000, 100}) {
    for (int sound = 0; sound < 300; sound += 1 + sound / 3) {
      SCOPED_TRACE(absl::StrCat(per_mille, " of 1000 reads wrong after ", sound));
      Start(damaged, per_mille, sound);
      ASSERT_EQ(Served(), left);
    }
  }
  EXPECT_GT(disk_.struck(), 0);
}

INSTANTIATE_TEST_SUITE_P(Damage, MisreadRecovery, ::testing::ValuesIn(kRepairedDamage),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(RecoveryFiles, DifferingReadsDuringRecoveryStopWrites) {
  const TestFolder folder;
  FaultyDisk disk;
  const std::string table = folder.File("1.sst"), other = folder.File("other");
  std::ofstream(table) << "the bytes of a table";
  RecoveryFileSystem files(disk.env()->GetFileSystem());
  files.Begin();
  std::unique_ptr<rocksdb::FSRandomAccessFile> reader;
  std::unique_ptr<rocksdb::FSWritableFile> new_file;
  ASSERT_TRUE(files.NewRandomAccessFile(table, {}, &reader, nullptr).ok());
  char scratch[32];
  rocksdb::Slice read;
  EXPECT_TRUE(reader->Read(4, 5, {}, &read, scratch, nullptr).ok());
  EXPECT_EQ(read, "bytes");
  EXPECT_TRUE(files.FileExists(folder.File("absent"), {}, nullptr).IsNotFound());
  EXPECT_EQ(files.failure(), "");
  disk.Arm(DiskFault::kFlippedBit, 1);
  EXPECT_TRUE(reader->Read(4, 5, {}, &read, scratch, nullptr).IsIOError());
  EXPECT_THAT(files.failure(), HasSubstr("1.sst: two reads of 5 bytes at 4 differ"));
  EXPECT_FALSE(files.NewWritableFile(folder.File("new"), {}, &new_file, nullptr).ok());
  EXPECT_FALSE(files.RenameFile(table, other, {}, nullptr).ok());
  EXPECT_FALSE(files.DeleteFile(table, {}, nullptr).ok());
  EXPECT_FALSE(fs::exists(folder.File("new")));
  EXPECT_TRUE(fs::exists(table));
  files.End();
  EXPECT_TRUE(files.DeleteFile(table, {}, nullptr).ok());
}

}  // namespace
}  // namespace hearth
