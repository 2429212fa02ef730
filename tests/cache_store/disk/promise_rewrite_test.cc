// The file of promises while it is written anew: promises go on being made, and wherever that ends,
// none is forgotten that was acknowledged.
#include <gtest/gtest.h>
#include <rocksdb/file_system.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "cache_store/disk/promises/disk_tier_promise_file.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr BootId kRewriteBoot = {1}, kBootAfter = {2};

// Says what is about to be done with the file that is to take the place of the promises.
class SteppedFiles : public rocksdb::FileSystemWrapper {
 public:
  using Options = rocksdb::IOOptions;
  using Context = rocksdb::IODebugContext;
  using OnStep = std::function<void()>;

  explicit SteppedFiles(const FaultyDisk& disk) : FileSystemWrapper(disk.env()->GetFileSystem()) {}
  const char* Name() const override { return "SteppedFiles"; }
  void Watch(OnStep on_step) { on_step_ = std::move(on_step); }

  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* out,
                                    Context* dbg) override {
    if (!absl::StrContains(path, "/promises.anew")) {
      return target()->NewWritableFile(path, options, out, dbg);
    }
    on_step_();
    const rocksdb::IOStatus made = target()->NewWritableFile(path, options, out, dbg);
    if (made.ok()) *out = std::make_unique<File>(this, std::move(*out));
    return made;
  }
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const Options& options, Context* dbg) override {
    if (absl::EndsWith(from, "/promises.anew")) on_step_();
    return target()->RenameFile(from, to, options, dbg);
  }
  rocksdb::IOStatus NewDirectory(const std::string& path, const Options& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* out,
                                 Context* dbg) override {
    on_step_();
    return target()->NewDirectory(path, options, out, dbg);
  }

 private:
  class File : public rocksdb::FSWritableFileOwnerWrapper {
   public:
    File(SteppedFiles* files, std::unique_ptr<rocksdb::FSWritableFile> file)
        : FSWritableFileOwnerWrapper(std::move(file)), files_(files) {}
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                             Context* dbg) override {
      files_->on_step_();
      return target()->Append(data, options, dbg);
    }
    rocksdb::IOStatus Sync(const Options& options, Context* dbg) override {
      files_->on_step_();
      return target()->Sync(options, dbg);
    }

   private:
    SteppedFiles* const files_;
  };

  OnStep on_step_ = [] {};
};

class PromisesWrittenAnew : public ::testing::Test {
 protected:
  // Every second one as `sync`, acknowledged as the disk tier does it.
  void Promise(uint64_t number) {
    PromiseEntry entry;
    entry.number = number;
    entry.id[0] = static_cast<uint8_t>(number);
    entry.level = PromiseLevel::kDisk;
    if (number % 2 == 0) {
      if (file_->Append({&entry, 1}).ok()) kept_as_disk_.push_back(number);
      return;
    }
    entry.kind = PromiseKind::kIntended;
    entry.level = PromiseLevel::kNone;
    if (!file_->Append({&entry, 1}).ok()) return;
    const PromiseFile::Place place = file_->BeginSync();
    if (!file_->EndSync(place).ok()) return;
    entry.kind = PromiseKind::kKept;
    entry.level = PromiseLevel::kSync;
    if (!file_->Append({&entry, 1}).ok()) return;
    file_->NoteSynced(place);
    kept_as_sync_.push_back(number);
  }
  void PromiseAll(uint64_t first, uint64_t last) {
    for (uint64_t number = first; number <= last; ++number) Promise(number);
  }
  // Enough that left for the file to be written anew.
  void FillWithDead() {
    std::vector<PromiseEntry> entries(4400);
    for (size_t i = 0; i < entries.size(); ++i) {
      entries[i].kind = i % 2 == 0 ? PromiseKind::kKept : PromiseKind::kReleased;
      entries[i].level = i % 2 == 0 ? PromiseLevel::kDisk : PromiseLevel::kNone;
      entries[i].number = 1000000 + i / 2;
    }
    EXPECT_TRUE(file_->Append(entries).ok());
  }
  void Begin(uint64_t round) {
    kept_as_disk_.clear();
    kept_as_sync_.clear();
    dir_ = folder_.File(absl::StrCat(round));
    std::filesystem::create_directory(dir_);
    files_.Watch([] {});
    std::vector<std::string> damage;
    file_ = std::make_unique<PromiseFile>(&files_, dir_, kRewriteBoot);
    file_->Begin(/*is_new=*/true, &damage);
    PromiseAll(1, 6);
  }
  // All that was acknowledged and may not be gone is promised.
  void EndAndCheck(bool is_machine) {
    disk_.Die();
    file_.reset();
    files_.Watch([] {});
    disk_.Restart(is_machine, &random_);
    std::vector<std::string> damage;
    PromiseBook book;
    EXPECT_TRUE(
        LookAtPromises(&files_, dir_, is_machine ? kBootAfter : kRewriteBoot, &book, &damage).ok());
    EXPECT_TRUE(book.has_header);
    EXPECT_EQ(book.damaged, 0u);
    for (const uint64_t number : kept_as_sync_) {
      const auto it = book.promises.find(number);
      // After a crash of the machine what is left of a promise as `sync` may be the intent.
      const bool is_there =
          it != book.promises.end() && (is_machine || it->second.level == PromiseLevel::kSync);
      EXPECT_TRUE(is_there) << number;
    }
    for (const uint64_t number : kept_as_disk_) {
      const auto it = book.promises.find(number);
      EXPECT_TRUE(is_machine || (it != book.promises.end() && it->second.HoldsUnder(kRewriteBoot)))
          << number;
    }
    for (const auto& [number, promise] : book.promises) {
      EXPECT_LT(number, 1000000u) << "it left before";
    }
  }

  const TestFolder folder_;
  std::mt19937_64 random_{7};
  FaultyDisk disk_;
  SteppedFiles files_{disk_};
  std::string dir_;
  std::vector<uint64_t> kept_as_disk_, kept_as_sync_;
  std::unique_ptr<PromiseFile> file_;
};

TEST_F(PromisesWrittenAnew, PromisesGoOnWhileItIsHeld) {
  Begin(0);
  absl::Notification held, go_on, done;
  std::atomic<int> steps{0};
  files_.Watch([&] {
    if (steps++ > 0) return;
    held.Notify();
    go_on.WaitForNotification();
  });
  std::thread publisher([&] {
    FillWithDead();
    held.WaitForNotification();
    PromiseAll(7, 40);
    done.Notify();
  });
  // Waits in full only where they do not go on.
  EXPECT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(10)));
  go_on.Notify();
  publisher.join();
  file_->AwaitRewriting();
  EXPECT_EQ(kept_as_disk_.size() + kept_as_sync_.size(), 40u);
  EXPECT_LT(std::filesystem::file_size(dir_ + "/promises"), 400 * kPromiseBytes);
  Promise(41);
  EndAndCheck(/*is_machine=*/false);
}

// It ends before each of its steps in turn, or after the last. At those that keep nobody waiting
// promises are made: some come while most of it is written, some after that.
TEST_F(PromisesWrittenAnew, NothingAcknowledgedIsForgottenWhereverItEnds) {
  constexpr int kFreeSteps = 6, kSteps = 10;
  for (int last = 1; last <= kSteps + 1; ++last) {
    for (const bool is_machine : {false, true}) {
      SCOPED_TRACE(testing::Message() << last << is_machine);
      Begin(static_cast<uint64_t>(2 * last) + (is_machine ? 1 : 0));
      uint64_t next = 7;
      int steps = 0;
      files_.Watch([&] {
        if (++steps <= kFreeSteps) {
          Promise(next++);
          Promise(next++);
        }
        if (steps == last) disk_.Die();
      });
      FillWithDead();
      file_->AwaitRewriting();
      EXPECT_EQ(steps, std::min(last, kSteps));
      EXPECT_EQ(kept_as_disk_.size() + kept_as_sync_.size(), 6 + 2 * std::min(last, kFreeSteps));
      EndAndCheck(is_machine);
    }
  }
}

// A write, a sync or a read fails in it: the file that is there stays good, and is written anew
// another time.
TEST_F(PromisesWrittenAnew, NothingAcknowledgedIsForgottenWhereItFails) {
  uint64_t round = 0;
  for (const DiskFault fault : {DiskFault::kFailedWrite, DiskFault::kShortWrite,
                                DiskFault::kFailedSync, DiskFault::kFailedRead}) {
    for (int nth = 1; nth <= 4; ++nth) {
      for (const bool is_machine : {false, true}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(fault) << " " << nth << is_machine);
        Begin(++round);
        std::atomic<int> steps{0};
        files_.Watch([&] {
          if (++steps == 1) disk_.Arm(fault, nth);
        });
        FillWithDead();
        PromiseAll(7, 12);
        file_->AwaitRewriting();
        disk_.Disarm();
        PromiseAll(13, 18);
        EXPECT_GE(kept_as_disk_.size() + kept_as_sync_.size(), 15u);
        EndAndCheck(is_machine);
      }
    }
  }
  // Whatever the order of the threads: of each kind but reads the first, twice.
  EXPECT_GE(disk_.struck(), 6);
}

// After an error the file is written anew, and of what rotted in it nothing is left to find.
TEST_F(PromisesWrittenAnew, WhatRottedBeforeIsSaidByTheNextStartThatComesToIt) {
  Begin(0);
  std::fstream(dir_ + "/promises", std::ios::in | std::ios::out | std::ios::binary)
      .seekp(2 * kPromiseBytes + 20)
      .put('x');
  disk_.Arm(DiskFault::kFailedSync, 1);
  EXPECT_FALSE(file_->EndSync(file_->BeginSync()).ok());
  Promise(8);
  file_.reset();
  EXPECT_EQ(ReadPromises(folder_.Read("0/promises")).damaged, 0u);
  for (int start = 0; start < 2; ++start) {
    std::vector<std::string> damage;
    file_ = std::make_unique<PromiseFile>(&files_, dir_, kRewriteBoot);
    file_->Begin(/*is_new=*/false, &damage);
    ASSERT_EQ(damage.size(), 1u);
    EXPECT_TRUE(absl::StrContains(damage[0], "is damaged: 1 of its entries are lost")) << damage[0];
  }
}

// Of what left only that lives which lost/ may hold.
TEST_F(PromisesWrittenAnew, WhatLeftAfterSomethingRottedIsDead) {
  Begin(0);
  PromiseEntry forgot;
  forgot.kind = PromiseKind::kForgot;
  forgot.number = 6;
  EXPECT_TRUE(file_->Append({&forgot, 1}).ok());
  std::vector<PromiseEntry> left(4080);
  for (size_t i = 0; i < left.size(); ++i) {
    left[i].kind = PromiseKind::kReleased;
    left[i].number = 1000000 + i;
  }
  EXPECT_TRUE(file_->Append(left).ok());
  file_->AwaitRewriting();
  EXPECT_GT(std::filesystem::file_size(dir_ + "/promises"), 4080 * kPromiseBytes);
  file_ = std::make_unique<PromiseFile>(&files_, dir_, kRewriteBoot);
  std::vector<std::string> damage;
  file_->Begin(/*is_new=*/false, &damage);
  left.resize(200);
  EXPECT_TRUE(file_->Append(left).ok());
  file_->AwaitRewriting();
  EXPECT_LT(std::filesystem::file_size(dir_ + "/promises"), 400 * kPromiseBytes);
}

TEST_F(PromisesWrittenAnew, NothingIsLeftOfAProcessThatDiedMeanwhile) {
  Begin(0);
  for (const char* part : {"/promises.anew", "/promises.new"}) std::ofstream(dir_ + part) << "half";
  file_ = std::make_unique<PromiseFile>(&files_, dir_, kRewriteBoot);
  std::vector<std::string> damage;
  file_->Begin(/*is_new=*/false, &damage);
  for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
    EXPECT_EQ(entry.path().filename(), "promises");
  }
}

}  // namespace
}  // namespace hearth
