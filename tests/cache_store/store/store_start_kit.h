// StoreStart: a fixture with a folder of a hundred restore points, in which tests open stores.
#ifndef HEARTH_TESTS_CACHE_STORE_STORE_STORE_START_KIT_H_
#define HEARTH_TESTS_CACHE_STORE_STORE_STORE_START_KIT_H_

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "cache_store/disk/stored_records.h"
#include "cache_store/store/store_seams.h"
#include "tests/support/fake_clock.h"
#include "tests/support/raw_database.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_checks.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {

inline constexpr uint64_t kPrompts = 100;
inline constexpr uint32_t kShared = 64;
inline constexpr uint32_t kLast = 96;

class StoreStart : public ::testing::Test {
 protected:
  // Returns a prompt. Groups of ten prompts have a common beginning. Every prompt has a restore
  // point of its own at kLast.
  static KitPrompt Prompt(uint64_t prompt) {
    KitPrompt kit{KitTokens(1000 + prompt / 10, kShared), {}};
    for (const uint32_t token : KitTokens(prompt, kLast + 4 - kShared)) {
      kit.tokens.push_back(token + 1);
    }
    return kit;
  }
  StoreOptions Options(uint64_t disk_bytes = uint64_t{1} << 30) {
    StoreOptions options;
    options.data_dir = folder_.path();
    options.host_bytes = 1 << 20;
    options.disk_bytes = disk_bytes;
    return options;
  }
  void Open(rocksdb::Env* env = nullptr, uint64_t disk_bytes = uint64_t{1} << 30) {
    store_.reset();
    StoreSeams seams = SteppedSeams(&executor_, &clock_);
    seams.disk.env = env;
    store_ = OpenStore(Options(disk_bytes), std::move(seams)).value();
    CheckInvariants(store_.get());
  }
  void Fill() {
    Open();
    for (uint64_t prompt = 0; prompt < kPrompts; ++prompt) ASSERT_TRUE(Publish(prompt).ok());
    store_.reset();
  }
  // Writes the nth manifest a second time under a larger number. A crash between the write of a
  // manifest and the erase of the replaced one can leave this state. REQUIRES: no store is open.
  static constexpr uint64_t kDuplicate = 1'000'000;
  void DuplicateManifest(size_t nth) {
    RawDatabase raw(folder_);
    ManifestRecord copy = ParseManifestRecord(raw.All("manifests").at(nth).second).value();
    copy.number = kDuplicate;
    raw.Put("manifests", NumberKey(copy.number), SerializeManifestRecord(copy));
  }
  absl::StatusOr<PublishResult> Publish(uint64_t prompt) {
    return KitPublish(store_.get(), model_, Prompt(prompt), {kLast});
  }
  uint32_t Fetch(uint64_t prompt) { return KitFetch(store_.get(), model_, Prompt(prompt)).value(); }
  uint64_t Counted(const char* name) { return store_->Stats().counters.at(name); }
  void ExpectAllThere() {
    for (uint64_t prompt = 0; prompt < kPrompts; ++prompt) EXPECT_EQ(Fetch(prompt), kLast);
  }

  const TestFolder folder_;
  const Fingerprint model_ = KitModel().Make();
  FakeClock clock_;
  ManualExecutor* executor_ = nullptr;
  std::unique_ptr<TieredStore> store_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_CACHE_STORE_STORE_STORE_START_KIT_H_
