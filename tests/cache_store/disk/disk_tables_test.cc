// Table files of slices: a table exists completely or not at all, and is deleted only if no slice
// in it is live.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/sst_file_reader.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/disk/stored_records.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/raw_database.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr size_t kSliceBytes = size_t{1} << 20;  // one slice is large enough for a table

class DiskTables : public ::testing::Test {
 protected:
  void Open() {
    tier_.reset();
    DiskTierOptions options;
    options.env = disk_.env();
    tier_ = DiskTier::Open(folder_.path(), "secret", options).value();
    EXPECT_TRUE(tier_->Load().damage.empty());
  }
  static SliceView Bytes(uint64_t object) {
    const std::vector<std::byte> bytes(kSliceBytes, static_cast<std::byte>(object));
    return CopySlice(bytes);
  }
  static StoredSlice Ref(uint64_t object) { return {object, 0, kSliceBytes, 0, true}; }
  // Writes one table with one slice for each object.
  void WriteTable(const std::vector<uint64_t>& objects) {
    std::vector<SliceWrite> slices;
    for (const uint64_t object : objects) {
      ObjectRecord record{object, {}, {0, 16, LayerGroup::kGlobal}, kSliceBytes, {0}, {0}, true};
      ASSERT_TRUE(tier_->WriteObject(record).ok());
      slices.push_back({Ref(object), Bytes(object)});
    }
    ASSERT_TRUE(tier_->WriteAll(slices).ok());
  }
  bool Holds(uint64_t object) {
    const auto read = tier_->Read(Ref(object));
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read->has_value()) return false;
    const SliceView expected = Bytes(object);
    EXPECT_EQ((*read)->bytes, expected.bytes) << object;
    return true;
  }

  // Waits until the tables take less than `most` bytes. RocksDB deletes unused files on its own
  // thread, after all jobs that started before.
  void AwaitTablesBelow(uint64_t most) {
    const absl::Time limit = absl::Now() + absl::Minutes(5);
    uint64_t bytes = most;
    while (bytes >= most && absl::Now() < limit) {
      std::this_thread::yield();
      bytes = 0;
      for (const auto& file : std::filesystem::directory_iterator(folder_.path() + "/db")) {
        std::error_code gone;
        const uint64_t size = file.path().extension() == ".sst" ? file.file_size(gone) : 0;
        if (!gone) bytes += size;
      }
    }
    EXPECT_LT(bytes, most);
  }

  const TestFolder folder_;
  FaultyDisk disk_;
  std::unique_ptr<DiskTier> tier_;
};

TEST_F(DiskTables, TablesSurviveReopening) {
  Open();
  WriteTable({3, 1, 2});  // the order of the objects does not matter
  for (int opened = 0; opened < 2; ++opened) {
    for (const uint64_t object : {1, 2, 3}) EXPECT_TRUE(Holds(object));
    EXPECT_FALSE(Holds(4));
    Open();
  }
}

// After a start with a missing table, RocksDB runs with fewer checks and does not report a failed
// flush as an error of the database. A caller must not wait for this flush forever.
TEST_F(DiskTables, FailedFlushReturnsAfterLostTable) {
  for (const DiskFault fault : {DiskFault::kFlippedBit, DiskFault::kFailedRead}) {
    tier_.reset();
    const TestFolder folder;
    DiskTierOptions options;
    options.env = disk_.env();
    tier_ = DiskTier::Open(folder.path(), "secret", options).value();
    WriteTable({1});
    WriteTable({2});
    tier_.reset();
    std::vector<std::filesystem::path> tables;
    for (const auto& file : std::filesystem::directory_iterator(folder.path() + "/db")) {
      if (file.path().extension() == ".sst") tables.push_back(file.path());
    }
    ASSERT_EQ(tables.size(), 2u);
    std::filesystem::remove(*std::min_element(tables.begin(), tables.end()));
    tier_ = DiskTier::Open(folder.path(), "secret", options).value();
    EXPECT_FALSE(tier_->Load().damage.empty());
    disk_.SetShare(fault, 1000);
    EXPECT_FALSE(tier_->SettleErases().ok());
    disk_.SetShare(fault, 0);
    const absl::Status settled = tier_->SettleErases();
    EXPECT_TRUE(settled.ok()) << settled;
    EXPECT_TRUE(Holds(2));
  }
  tier_.reset();
}

// After a read error the start is tried again. The database is moved aside only if it is damaged.
TEST_F(DiskTables, ReadErrorAtStartLosesNoTable) {
  Open();
  WriteTable({1, 2});
  ASSERT_TRUE(tier_->SettleErases().ok());
  tier_.reset();
  DiskTierOptions options;
  options.env = disk_.env();
  int failed = 0;
  for (int nth = 1; nth <= 60; ++nth) {
    disk_.Arm(DiskFault::kFailedRead, nth);
    failed += DiskTier::Open(folder_.path(), "secret", options).ok() ? 0 : 1;
    disk_.Disarm();
    EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/db.damaged")) << nth;
  }
  EXPECT_GT(failed, 5);
  Open();
  EXPECT_TRUE(Holds(1) && Holds(2));
}

TEST_F(DiskTables, TableOfErasedObjectsIsDeleted) {
  Open();
  WriteTable({1, 2});
  WriteTable({3, 4});
  const uint64_t full = tier_->FileBytes();
  ASSERT_TRUE(tier_->EraseObjects({{1, 2}}).ok());
  EXPECT_FALSE(Holds(1));
  ASSERT_TRUE(tier_->ReclaimSpace(uint64_t{1} << 40).ok());
  EXPECT_LT(tier_->FileBytes(), full - 3 * kSliceBytes / 2);
  EXPECT_FALSE(Holds(2));
  EXPECT_TRUE(Holds(3) && Holds(4));
}

TEST_F(DiskTables, ReclaimRewritesHalfErasedTable) {
  Open();
  WriteTable({1, 2, 3, 4});
  const uint64_t full = tier_->FileBytes();
  ASSERT_TRUE(tier_->EraseObjects({{1, 3}}).ok());
  ASSERT_TRUE(tier_->ReclaimSpace(uint64_t{1} << 40).ok());
  EXPECT_GT(tier_->FileBytes(), full - kSliceBytes);
  ASSERT_TRUE(tier_->ReclaimSpace(2 * kSliceBytes + (64 << 10)).ok());
  EXPECT_LT(tier_->FileBytes(), full - kSliceBytes);
  EXPECT_TRUE(Holds(2) && Holds(4));
  EXPECT_FALSE(Holds(1) || Holds(3));
}

TEST_F(DiskTables, ReclaimKeepsLiveTableInErasedRange) {
  Open();
  WriteTable({5, 40});
  WriteTable({11, 12});
  WriteTable({20});
  ASSERT_TRUE(tier_->EraseObjects({{5, 40}}).ok());
  for (const uint64_t room : {uint64_t{1} << 40, uint64_t{0}}) {
    ASSERT_TRUE(tier_->ReclaimSpace(room).ok());
    EXPECT_TRUE(Holds(11) && Holds(12) && Holds(20)) << room;
    EXPECT_FALSE(Holds(5) || Holds(40)) << room;
  }
  Open();
  EXPECT_TRUE(Holds(11) && Holds(12) && Holds(20));
}

TEST_F(DiskTables, ObjectWrittenAfterEraseIsReadable) {
  Open();
  WriteTable({7, 8});
  ASSERT_TRUE(tier_->EraseObjects({{7, 8}}).ok());
  WriteTable({7, 8});
  EXPECT_TRUE(Holds(7) && Holds(8));
  ASSERT_TRUE(tier_->ReclaimSpace(0).ok());
  EXPECT_TRUE(Holds(7) && Holds(8));
  Open();
  EXPECT_TRUE(Holds(7) && Holds(8));
}

TEST_F(DiskTables, StartRemovesHalfWrittenTables) {
  Open();
  const std::string left = folder_.path() + "/tables.tmp/17.sst";
  std::ofstream(left) << "half a table";
  ASSERT_TRUE(std::filesystem::exists(left));
  Open();
  EXPECT_FALSE(std::filesystem::exists(left));
  WriteTable({1});
  EXPECT_TRUE(Holds(1));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path() + "/tables.tmp"));
}

// Expects four syncs: of the table, of its file name, and of RocksDB's manifest before and after
// the link.
TEST_F(DiskTables, TableWriteNeedsFourSyncs) {
  Open();
  WriteTable({1});
  const int before = disk_.syncs();
  WriteTable({2, 3});
  EXPECT_EQ(disk_.syncs() - before, 4);
}

TEST_F(DiskTables, TablesSurviveMachineCrash) {
  std::mt19937_64 random(1);
  Open();
  for (uint64_t object = 1; object <= 12; object += 2) {
    WriteTable({object, object + 1});
    disk_.Die();
    tier_.reset();
    disk_.Restart(/*machine=*/true, &random);
    Open();
    for (uint64_t known = 1; known <= object + 1; ++known) EXPECT_TRUE(Holds(known)) << known;
  }
}

// RocksDB asserts that the first and last block of a new table can be read.
TEST_F(DiskTables, WriteFailsIfTableCannotBeRead) {
  for (const DiskFault fault : {DiskFault::kFailedRead, DiskFault::kFlippedBit}) {
    for (int nth = 1; nth <= 8; ++nth) {
      Open();
      const uint64_t object = 100 * (fault == DiskFault::kFlippedBit) + 2 * nth;
      ObjectRecord record{object, {}, {0, 16, LayerGroup::kGlobal}, kSliceBytes, {0}, {0}, true};
      ASSERT_TRUE(tier_->WriteObject(record).ok());
      const SliceWrite slices[] = {{Ref(object), Bytes(object)}};
      disk_.Arm(fault, nth);
      const absl::Status written = tier_->WriteAll(slices);
      disk_.Arm(fault, 1 << 20);  // no further fault
      EXPECT_TRUE(!written.ok() || Holds(object)) << nth;
      Open();
      EXPECT_TRUE(!written.ok() || Holds(object)) << nth;
    }
  }
  EXPECT_GT(disk_.struck(), 4);
}

// The checksums of records do not cover the layout of their block, on which RocksDB asserts.
TEST_F(DiskTables, DamagedBlockIsDataLoss) {
  Open();
  const ObjectRecord record{1, {}, {0, 16, LayerGroup::kGlobal}, kSliceBytes, {0}, {0}, true};
  ASSERT_TRUE(tier_->WriteObject(record).ok());
  // moves the records from the log into a block
  ASSERT_TRUE(tier_->ReclaimSpace(uint64_t{1} << 40).ok());
  const std::string bytes = SerializeObject(record);
  int rotten = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/db")) {
    if (entry.path().extension() != ".sst") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(file)), {});
    const size_t begin = content.find(bytes);
    if (begin == std::string::npos) continue;
    const size_t end = begin + bytes.size() + 8;  // includes the offsets of the block's entries
    for (size_t at = 0; at < end; ++at, ++rotten) {
      const auto put = [&](char byte) { file.seekp(static_cast<std::streamoff>(at)).put(byte); };
      put(static_cast<char>(content[at] ^ 0x40));
      file.flush();
      EXPECT_TRUE(absl::IsDataLoss(tier_->ReadObject(1).status())) << at;
      put(content[at]);
      file.flush();
    }
    EXPECT_TRUE(tier_->ReadObject(1).ok());
  }
  EXPECT_GT(rotten, 0);
}

TEST_F(DiskTables, DamagedSliceIsDataLoss) {
  Open();
  // one value in the block, one in a blob file
  const std::vector<std::byte> small(16), large(8192);
  const StoredSlice refs[] = {{1, 0, small.size(), 0}, {2, 0, large.size(), 0}};
  ASSERT_TRUE(tier_->WriteAll({{refs[0], CopySlice(small)}}).ok());
  ASSERT_TRUE(tier_->WriteAll({{refs[1], CopySlice(large)}}).ok());
  ASSERT_TRUE(tier_->ReclaimSpace(uint64_t{1} << 40).ok());
  int lost = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/db")) {
    if (entry.path().extension() != ".sst") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(file)), {});
    const auto put = [&](size_t at, char byte) {
      file.seekp(static_cast<std::streamoff>(at)).put(byte).flush();
    };
    for (size_t at = 0; at < content.size(); ++at) {
      put(at, static_cast<char>(content[at] ^ 0x40));
      for (const StoredSlice& ref : refs) {
        const auto read = tier_->Read(ref);
        EXPECT_TRUE(read.ok() ? (*read)->bytes.size() == ref.bytes
                              : absl::IsDataLoss(read.status()))
            << at << ": " << read.status();
        lost += !read.ok();
      }
      put(at, content[at]);
    }
  }
  EXPECT_GT(lost, 0);
}

TEST_F(DiskTables, ReclaimSucceedsAfterFailedReclaim) {
  for (int nth = 1; nth <= 8; ++nth) {
    const auto object = static_cast<uint64_t>(nth);
    Open();
    WriteTable({object});
    ASSERT_TRUE(tier_->EraseObjects({{object}}).ok());
    disk_.Arm(DiskFault::kFailedWrite, nth);
    tier_->ReclaimSpace(uint64_t{1} << 40).IgnoreError();
    disk_.Arm(DiskFault::kFailedWrite, 1 << 20);  // no further fault
    EXPECT_TRUE(tier_->SetPinned(object, true).ok() || tier_->SetPinned(object, true).ok()) << nth;
    const absl::Status reclaimed = tier_->ReclaimSpace(uint64_t{1} << 40);
    EXPECT_TRUE(reclaimed.ok()) << nth << ": " << reclaimed;
    AwaitTablesBelow(kSliceBytes);
  }
  EXPECT_GT(disk_.struck(), 2);
}

// If a compaction starts a table but writes no entry into it, RocksDB reads the first key of the
// table, and asserts that it exists, even if the table could not be written.
TEST_F(DiskTables, FailedReclaimDoesNotReviveObjects) {
  int failed = 0;
  for (int nth = 4; nth <= 30; ++nth) {
    const uint64_t first = 10 * static_cast<uint64_t>(nth);
    Open();
    WriteTable({first, first + 2});
    WriteTable({first + 1, first + 3});
    for (const uint64_t small : {first + 4, first + 5}) {
      const ObjectRecord record{small, {}, {0, 16, LayerGroup::kGlobal}, 9, {0}, {0}};
      ASSERT_TRUE(tier_->WriteObject(record).ok());
      ASSERT_TRUE(tier_->WriteAll({{Ref(small), CopySlice(std::vector<std::byte>(9))}}).ok());
    }
    std::vector<uint64_t> all(6);
    std::iota(all.begin(), all.end(), first);
    ASSERT_TRUE(tier_->EraseObjects(all).ok());
    disk_.Arm(DiskFault::kFailedWrite, nth);
    failed += tier_->ReclaimSpace(0).ok() ? 0 : 1;
    disk_.Disarm();
    for (const uint64_t object : all) EXPECT_FALSE(Holds(object)) << nth;
  }
  // The number of faults varies: RocksDB decides which writes belong to the reclaim and which to
  // its own jobs.
  EXPECT_GT(disk_.struck(), 4);
  EXPECT_GT(failed, 0);
}

TEST_F(DiskTables, SliceIsReadableAfterDatabaseCloses) {
  Open();
  WriteTable({1});
  const std::vector<std::byte> small(8192, std::byte{2});
  const StoredSlice of_small{2, 0, small.size(), 0};
  ASSERT_TRUE(tier_->WriteAll({{of_small, CopySlice(small)}}).ok());
  // moves the records from the log into a block
  ASSERT_TRUE(tier_->ReclaimSpace(uint64_t{1} << 40).ok());
  const SliceView large_view = **tier_->Read(Ref(1)), small_view = **tier_->Read(of_small);
  tier_.reset();
  EXPECT_EQ(large_view.bytes, Bytes(1).bytes);
  EXPECT_EQ(small_view.bytes, absl::MakeConstSpan(small));
}

TEST_F(DiskTables, EraseSucceedsDespiteReadError) {
  Open();
  WriteTable({1, 2});
  ASSERT_TRUE(tier_->ReclaimSpace(uint64_t{1} << 40).ok());  // flushes the records to a table
  Open();
  const int struck = disk_.struck();
  disk_.Arm(DiskFault::kFailedRead, 1);
  EXPECT_TRUE(tier_->EraseObjects({{1, 2}}).ok());
  EXPECT_EQ(disk_.struck(), struck + 1);
  EXPECT_FALSE(Holds(1) || Holds(2));
}

TEST_F(DiskTables, TableWritesWorkWithoutDirectIo) {
  std::mt19937_64 random(1);
  disk_.SetLacksDirect();
  Open();
  WriteTable({1, 2, 3});
  EXPECT_TRUE(Holds(1) && Holds(2) && Holds(3));
  disk_.Die();
  tier_.reset();
  disk_.Restart(/*machine=*/true, &random);
  Open();
  EXPECT_TRUE(Holds(1) && Holds(2) && Holds(3));
}

// The lost table has object numbers below and above an object of another table, and reads of this
// other table fail.
TEST_F(DiskTables, LostTableCostsNoOtherTable) {
  Open();
  WriteTable({1, 3});
  WriteTable({2});
  tier_.reset();
  std::filesystem::path first;
  for (const auto& file : std::filesystem::directory_iterator(folder_.path() + "/db")) {
    const bool is_table = file.path().extension() == ".sst";
    if (is_table && (first.empty() || file.path() < first)) first = file.path();
  }
  std::filesystem::remove(first);
  // Opens a copy of the folder on a disk whose first `sound` reads are correct and whose later
  // reads have faults.
  const auto open = [&](DiskFault fault, int sound) {
    const TestFolder copy;
    std::filesystem::copy(folder_.path(), copy.path(), std::filesystem::copy_options::recursive);
    DiskTierOptions options;
    options.env = disk_.env();
    options.wait = [](absl::Duration) {};
    disk_.SpareReads(sound);
    disk_.SetShare(fault, 1000);
    const auto tier = DiskTier::Open(copy.path(), "secret", options);
    disk_.SetShare(fault, 0);
    if (!tier.ok()) {
      EXPECT_EQ(tier.status().code(), absl::StatusCode::kUnavailable) << tier.status();
      return;
    }
    const DiskContents contents = (*tier)->Load();
    ASSERT_EQ(contents.objects.size(), 1u);
    EXPECT_EQ(contents.objects[0].number, 2u);
    EXPECT_EQ(contents.unreadable_objects, (std::vector<uint64_t>{1, 3}));
  };
  for (const DiskFault fault : {DiskFault::kFlippedBit, DiskFault::kFailedRead}) {
    constexpr int kMany = 100000;
    open(fault, kMany);
    const int reads = kMany - disk_.spared_reads();
    for (int last = 1; last <= 12; ++last) {  // number of wrong reads
      const int struck = disk_.struck();
      open(fault, reads - last);
      EXPECT_GT(disk_.struck(), struck) << last;
    }
  }
  disk_.SpareReads(0);
}

// A full disk keeps its last space for erases until a reclaim frees space. A damaged block of
// records must not block writes forever.
TEST_F(DiskTables, DamagedRecordDoesNotStopWrites) {
  Open();
  WriteTable({1});
  WriteTable({2});
  ASSERT_TRUE(tier_->SettleErases().ok());  // flushes the erases
  const ObjectRecord record{1, {}, {0, 16, LayerGroup::kGlobal}, kSliceBytes, {0}, {0}, true};
  ASSERT_EQ(FlipBitsOnDisk(folder_, SerializeObject(record)), 1);
  tier_->ReleaseReserve();
  ASSERT_TRUE(absl::IsResourceExhausted(tier_->MayAdd()));
  EXPECT_TRUE(absl::IsDataLoss(tier_->ReclaimSpace(0)));
  EXPECT_TRUE(tier_->MayAdd().ok());
  WriteTable({4});
  EXPECT_TRUE(Holds(4));
}

}  // namespace
}  // namespace hearth
