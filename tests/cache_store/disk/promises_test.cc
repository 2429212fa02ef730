// The file of promises: what it says after appends, cuts and flips, and on a disk that fails.
#include "cache_store/disk/promises/promises.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "cache_store/disk/promises/disk_tier_promise_file.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr BootId kBoot = {1, 2, 3}, kNextBoot = {4};

PromiseEntry Entry(PromiseKind kind, uint64_t number, PromiseLevel level = PromiseLevel::kNone) {
  PromiseEntry entry;
  entry.kind = kind;
  entry.level = level;
  entry.tokens = static_cast<uint32_t>(number) * 16;
  entry.number = number;
  entry.id[0] = static_cast<uint8_t>(number);
  return entry;
}
std::string File(const std::vector<PromiseEntry>& entries) {
  std::string bytes = SerializePromise(PromisesHeader());
  bytes += SerializePromise(PromisesSession(kBoot, 5));
  for (const PromiseEntry& entry : entries) bytes += SerializePromise(entry);
  return bytes;
}

TEST(Promises, WhatIsReleasedIsNotPromisedAndTheLastEntryOfANumberCounts) {
  const PromiseBook book = ReadPromises(File({
      Entry(PromiseKind::kKept, 1, PromiseLevel::kDisk),
      Entry(PromiseKind::kKept, 2, PromiseLevel::kDisk),
      Entry(PromiseKind::kReleased, 1),
      Entry(PromiseKind::kReleased, 9),
      Entry(PromiseKind::kReleased, 3),
      Entry(PromiseKind::kKept, 3, PromiseLevel::kSync),
  }));
  ASSERT_EQ(book.promises.size(), 2u);
  EXPECT_EQ(book.promises.at(2).tokens, 32u);
  EXPECT_EQ(book.promises.at(2).id[0], 2);
  EXPECT_EQ(book.promises.at(3).level, PromiseLevel::kSync);
  EXPECT_EQ(book.last_number, 9u);
  EXPECT_TRUE(book.has_header);
  EXPECT_EQ(book.damaged, 0u);
}

TEST(Promises, AFileWrittenAnewNamesWhatWasErasedLast) {
  std::vector<PromiseEntry> entries;
  for (uint64_t number = 1; number <= kMaxRecentlyErased + 3; ++number) {
    entries.push_back(Entry(PromiseKind::kKept, number, PromiseLevel::kDisk));
    entries.push_back(ErasedEntry(number, 1));
  }
  entries.push_back(ErasedEntry(3, 2));  // again by the next start
  // A start did not find it.
  entries.push_back(Entry(PromiseKind::kKept, 5000, PromiseLevel::kDisk));
  entries.push_back(Entry(PromiseKind::kReleased, 5000));
  entries.push_back(Entry(PromiseKind::kKept, 9, PromiseLevel::kDisk));
  std::string bytes = File(entries);
  for (int anew = 0; anew < 2; ++anew) {
    bytes = WritePromises(ReadPromises(bytes));
    const PromiseBook book = ReadPromises(bytes);
    EXPECT_EQ(book.gone.size(), kMaxRecentlyErased);
    EXPECT_TRUE(book.gone.contains(3) && book.gone.contains(kMaxRecentlyErased + 3));
    EXPECT_EQ(book.erased, book.gone);
    EXPECT_FALSE(book.gone.contains(1) || book.gone.contains(2) || book.gone.contains(9));
    EXPECT_EQ(book.promises.size(), 1u);
    EXPECT_LE(book.entries, book.LiveEntries() + kMaxRecentlyErased + 3);  // a header, sessions
  }
}

TEST(Promises, WhatWasFoundLostIsRememberedUntilItLeavesOrIsPublishedAgain) {
  PromiseEntry again = Entry(PromiseKind::kKept, 8, PromiseLevel::kDisk);
  again.id = Entry(PromiseKind::kKept, 3).id;
  const PromiseBook book = ReadPromises(File({
      Entry(PromiseKind::kKept, 1, PromiseLevel::kDisk),
      Entry(PromiseKind::kKept, 2, PromiseLevel::kDisk),
      Entry(PromiseKind::kKept, 3, PromiseLevel::kDisk),
      Entry(PromiseKind::kKept, 4, PromiseLevel::kDisk),
      Entry(PromiseKind::kReleased, 1, PromiseLevel::kDisk),
      Entry(PromiseKind::kReleased, 2, PromiseLevel::kDisk),
      Entry(PromiseKind::kReleased, 3, PromiseLevel::kDisk),
      Entry(PromiseKind::kReleased, 4),
      Entry(PromiseKind::kReleased, 2),
      again,
      Entry(PromiseKind::kReleased, 8),
  }));
  EXPECT_TRUE(book.promises.empty());
  EXPECT_EQ(book.gone, (absl::flat_hash_set<uint64_t>{2, 3, 4, 8}));
  ASSERT_EQ(book.lost.size(), 1u);
  EXPECT_EQ(book.lost.at(1).id[0], 1);
  const PromiseBook anew = ReadPromises(WritePromises(book));
  EXPECT_TRUE(anew.promises.empty());
  ASSERT_EQ(anew.lost.size(), 1u);
  EXPECT_EQ(anew.lost.at(1).id[0], 1);
  EXPECT_EQ(anew.lost.at(1).tokens, 16u);
}

TEST(Promises, OfDiskHoldUntilTheMachineEndsUnlessASyncCameAfter) {
  std::string file = File({Entry(PromiseKind::kKept, 1, PromiseLevel::kDisk)});
  PromiseEntry synced = Entry(PromiseKind::kSynced, file.size());
  file += SerializePromise(Entry(PromiseKind::kKept, 2, PromiseLevel::kDisk));
  file += SerializePromise(Entry(PromiseKind::kIntended, 3));
  file += SerializePromise(Entry(PromiseKind::kIntended, 4));
  file += SerializePromise(Entry(PromiseKind::kKept, 4, PromiseLevel::kSync));
  file += SerializePromise(synced);
  PromiseBook book = ReadPromises(file);
  EXPECT_TRUE(book.promises.at(1).HoldsUnder(kNextBoot));
  EXPECT_FALSE(book.promises.at(2).HoldsUnder(kNextBoot));
  EXPECT_TRUE(book.promises.at(2).HoldsUnder(kBoot));
  EXPECT_FALSE(book.promises.at(3).HoldsUnder(kBoot));
  EXPECT_TRUE(book.promises.at(4).HoldsUnder(kNextBoot));
  // Written again it says the same.
  const PromiseBook again = ReadPromises(WritePromises(book));
  ASSERT_EQ(again.promises.size(), 4u);
  for (const auto& [number, promise] : again.promises) {
    EXPECT_EQ(promise.level, book.promises.at(number).level);
    EXPECT_EQ(promise.boot, kBoot);
  }
}

TEST(Promises, AFlipCostsItsEntryAndACutWhatItTook) {
  const std::string whole = File({
      Entry(PromiseKind::kKept, 1, PromiseLevel::kDisk),
      Entry(PromiseKind::kKept, 2, PromiseLevel::kDisk),
      Entry(PromiseKind::kKept, 3, PromiseLevel::kDisk),
  });
  std::mt19937_64 random(1);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 1 << random() % 8);
    const PromiseBook book = ReadPromises(flipped);
    EXPECT_EQ(book.damaged, 1u);
    EXPECT_GE(book.promises.size(), 2u);
    const PromiseBook cut = ReadPromises(whole.substr(0, at));
    EXPECT_EQ(cut.promises.size(), at / kPromiseBytes < 3 ? 0 : at / kPromiseBytes - 2);
    EXPECT_EQ(cut.torn_bytes, at % kPromiseBytes);
  }
  std::string zeros = whole;
  zeros.replace(3 * kPromiseBytes, kPromiseBytes, kPromiseBytes, '\0');
  EXPECT_EQ(ReadPromises(zeros).damaged, 0u);
  EXPECT_EQ(ReadPromises(zeros).promises.size(), 2u);
}

// One that a failed sync has closed: what it says is read and written anew before the next.
class PromisesOnABadDisk : public ::testing::Test {
 protected:
  PromisesOnABadDisk() { file_.Begin(/*is_new=*/true, &damage_); }
  rocksdb::IOStatus Append(PromiseKind kind, uint64_t number, PromiseLevel level) {
    const PromiseEntry entry = Entry(kind, number, level);
    return file_.Append({&entry, 1});
  }
  void FailASync() {
    disk_.Arm(DiskFault::kFailedSync, 1);
    EXPECT_FALSE(file_.EndSync(file_.BeginSync()).ok());
    disk_.Disarm();
  }
  PromiseBook Said() const { return ReadPromises(folder_.Read("promises")); }

  const TestFolder folder_;
  FaultyDisk disk_;
  std::vector<std::string> damage_;
  PromiseFile file_{disk_.env()->GetFileSystem().get(), folder_.path(), kBoot};
};

TEST_F(PromisesOnABadDisk, WhatCannotBeReadIsNotWrittenAnewWithoutIt) {
  for (uint64_t number = 1; number <= 9; ++number) {
    ASSERT_TRUE(Append(PromiseKind::kKept, number, PromiseLevel::kDisk).ok());
  }
  FailASync();
  std::filesystem::rename(folder_.File("promises"), folder_.File("away"));
  EXPECT_FALSE(Append(PromiseKind::kKept, 10, PromiseLevel::kDisk).ok());
  std::filesystem::rename(folder_.File("away"), folder_.File("promises"));
  EXPECT_TRUE(Append(PromiseKind::kKept, 11, PromiseLevel::kDisk).ok());
  EXPECT_EQ(Said().promises.size(), 10u);
}

TEST_F(PromisesOnABadDisk, WhatWasFoundLostIsForgottenWithTheFolderThatItMayBeIn) {
  std::filesystem::create_directory(folder_.File("lost"));
  ASSERT_TRUE(Append(PromiseKind::kKept, 1, PromiseLevel::kDisk).ok());
  ASSERT_TRUE(Append(PromiseKind::kReleased, 1, PromiseLevel::kDisk).ok());
  FailASync();
  ASSERT_TRUE(Append(PromiseKind::kKept, 2, PromiseLevel::kDisk).ok());
  EXPECT_EQ(Said().lost.size(), 1u);
  std::filesystem::remove(folder_.File("lost"));
  FailASync();
  ASSERT_TRUE(Append(PromiseKind::kKept, 3, PromiseLevel::kDisk).ok());
  EXPECT_EQ(Said().lost.size(), 0u);
  EXPECT_EQ(Said().promises.size(), 2u);
}

TEST_F(PromisesOnABadDisk, ASyncAfterOneThatFailedIsTriedAnew) {
  ASSERT_TRUE(Append(PromiseKind::kKept, 1, PromiseLevel::kDisk).ok());
  FailASync();
  EXPECT_TRUE(file_.EndSync(file_.BeginSync()).ok());
  EXPECT_EQ(Said().promises.size(), 1u);
}

TEST_F(PromisesOnABadDisk, WhatWasSyncedOfAFileIsNoPlaceInTheNext) {
  for (uint64_t number = 1; number <= 9; ++number) {
    ASSERT_TRUE(Append(PromiseKind::kKept, number, PromiseLevel::kDisk).ok());
    ASSERT_TRUE(Append(PromiseKind::kReleased, number, PromiseLevel::kNone).ok());
  }
  const PromiseFile::Place place = file_.BeginSync();
  ASSERT_TRUE(file_.EndSync(place).ok());
  ASSERT_TRUE(Append(PromiseKind::kKept, 10, PromiseLevel::kDisk).ok());
  FailASync();
  file_.NoteSynced(place);
  ASSERT_TRUE(Append(PromiseKind::kKept, 11, PromiseLevel::kDisk).ok());
  EXPECT_FALSE(Said().promises.at(10).HoldsUnder(kNextBoot));
}

}  // namespace
}  // namespace hearth
