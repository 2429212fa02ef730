// A disk that fails for a while: what was acknowledged is there once it is well, and the store
// takes more, without a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/store/store_seams.h"
#include "tests/support/fake_clock.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

struct Failing {
  const char* name;
  DiskFault fault;
  int per_mille;
  uint32_t head_dim;  // 1,024: tables; 2: the log
};
constexpr Failing kFailing[] = {
    {"FolderSyncsOfTables", DiskFault::kFailedFolderSync, 1000, 1024},
    {"FolderSyncs", DiskFault::kFailedFolderSync, 1000, 2},
    {"FileSyncsOfTables", DiskFault::kFailedSync, 1000, 1024},
    {"WritesOfTables", DiskFault::kFailedWrite, 1000, 1024},
    {"Writes", DiskFault::kFailedWrite, 1000, 2},
    {"HalfOfTheWritesOfTables", DiskFault::kShortWrite, 500, 1024},
    {"HalfOfTheWrites", DiskFault::kShortWrite, 500, 2},
    {"ReadsOfTables", DiskFault::kFailedRead, 1000, 1024},
    {"Reads", DiskFault::kFailedRead, 1000, 2},
    {"OneReadOfTwentyOfTables", DiskFault::kFailedRead, 50, 1024},
    {"OneReadOfTwenty", DiskFault::kFailedRead, 50, 2},
    {"OneBitInOneReadOfFiftyOfTables", DiskFault::kFlippedBit, 20, 1024},
    {"OneBitInOneReadOfFifty", DiskFault::kFlippedBit, 20, 2},
};

class FailingDisk : public ::testing::TestWithParam<Failing> {
 protected:
  FailingDisk() {
    KitModel geometry;
    geometry.head_dim = GetParam().head_dim;
    model_ = geometry.Make();
  }
  void Open() {
    store_.reset();
    StoreOptions options;
    options.data_dir = folder_.path();
    options.host_bytes = 0;
    options.disk_bytes = uint64_t{1} << 30;
    StoreSeams seams = SteppedSeams(&executor_, &clock_);
    seams.disk_env = disk_.env();
    store_ = OpenStore(options, std::move(seams)).value();
  }
  // Publishes, and remembers what was acknowledged.
  absl::Status Publish(Durability durability) {
    const uint64_t seed = ++seed_;
    absl::Status status = KitPublish(store_.get(), model_, Prompt(seed), {64}, durability).status();
    if (status.ok()) acknowledged_.push_back(seed);
    return status;
  }
  uint32_t Fetch(uint64_t seed) {
    const absl::StatusOr<uint32_t> fetched = KitFetch(store_.get(), model_, Prompt(seed));
    return fetched.ok() ? *fetched : 0;
  }
  static KitPrompt Prompt(uint64_t seed) { return {KitTokens(seed, 65), {}}; }
  SteppedStore* stepped() { return static_cast<SteppedStore*>(store_.get()); }
  void ExpectAllThere() {
    for (const uint64_t seed : acknowledged_) EXPECT_EQ(Fetch(seed), 64u) << seed;
  }

  const TestFolder folder_;
  Fingerprint model_ = KitModel().Make();
  FaultyDisk disk_;
  FakeClock clock_;
  ManualExecutor* executor_ = nullptr;
  std::unique_ptr<TieredStore> store_;
  uint64_t seed_ = 0;
  std::vector<uint64_t> acknowledged_;
};

TEST_P(FailingDisk, IsTakenBackWithAllThatWasAcknowledged) {
  Open();
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(Publish(i % 2 == 0 ? Durability::kDisk : Durability::kSync).ok());
  }
  Open();  // from files, not from memory
  for (int round = 0; round < 3; ++round) {
    disk_.SetShare(GetParam().fault, GetParam().per_mille);
    for (int i = 0; i < 8; ++i) {
      Publish(i % 2 == 0 ? Durability::kDisk : Durability::kSync).IgnoreError();
      for (const uint64_t seed : acknowledged_) Fetch(seed);
      clock_.Advance(absl::Seconds(1));
      stepped()->ScrubStep();
      executor_->RunAll();
    }
    disk_.SetShare(GetParam().fault, 0);
    const absl::Status taken = Publish(Durability::kSync);
    EXPECT_TRUE(taken.ok()) << taken;
    for (int i = 0; i < 40; ++i) {
      clock_.Advance(absl::Seconds(1));
      stepped()->ScrubStep();
    }
    ExpectAllThere();
    stepped()->CheckInvariants();
  }
  EXPECT_GT(disk_.struck(), 0);
  EXPECT_EQ(store_->Stats().counters.at("quarantined_objects"), 0u);
  Open();
  ExpectAllThere();
}

INSTANTIATE_TEST_SUITE_P(Faults, FailingDisk, ::testing::ValuesIn(kFailing),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace hearth
