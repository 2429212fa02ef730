// SteppedStoreFixture: a store in its own folder. The test controls the store's clock and its
// background jobs. Fixtures inherit from it and from ::testing::Test, and set options_ before Open.
#ifndef HEARTH_TESTS_SUPPORT_STEPPED_STORE_H_
#define HEARTH_TESTS_SUPPORT_STEPPED_STORE_H_

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/faulty_tier.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {

class SteppedStoreFixture {
 protected:
  SteppedStoreFixture() {
    options_.data_dir = folder_.path();
    options_.host_bytes = 0;
    options_.disk_bytes = uint64_t{1} << 30;
    options_.on_warning = [this](const std::string& line) {
      absl::MutexLock lock(&lines_mu_);  // threads of RocksDB call this too
      lines_.push_back(line);
    };
  }
  virtual ~SteppedStoreFixture() = default;
  virtual StoreSeams Seams() { return SteppedSeams(&executor_, &clock_); }

  // Returns a model with slices of 128 KiB, which the store writes to tables of their own. A prompt
  // has 13 slices, 1.6 MiB.
  static Fingerprint LargeModel() {
    KitModel geometry;
    geometry.head_dim = 1024;
    geometry.layer_types = "llllg";
    return geometry.Make();
  }
  // Closes the store if it is open, and opens it again.
  absl::Status TryOpen() {
    store_.reset();
    auto opened = OpenStore(options_, Seams());
    if (opened.ok()) store_ = *std::move(opened);
    return opened.status();
  }
  void Open() {
    const absl::Status opened = TryOpen();
    ASSERT_TRUE(opened.ok()) << opened;
  }
  static KitPrompt Prompt(uint64_t seed, uint32_t tokens = 65) {
    return {KitTokens(seed, tokens), {}};
  }
  absl::Status Publish(uint64_t seed, Durability durability = Durability::kDefault) {
    return KitPublish(store_.get(), model_, Prompt(seed), {64}, durability).status();
  }
  uint32_t Fetch(uint64_t seed) { return KitFetch(store_.get(), model_, Prompt(seed)).value(); }
  uint64_t Counted(const char* name) { return store_->Stats().counters.at(name); }
  Store* stepped() { return static_cast<Store*>(store_.get()); }

  const TestFolder folder_;
  Fingerprint model_ = KitModel().Make();
  StoreOptions options_;
  absl::Mutex lines_mu_;
  std::vector<std::string> lines_;  // lines that the store has logged as warnings
  FakeClock clock_;
  ManualExecutor* executor_ = nullptr;
  std::unique_ptr<TieredStore> store_;
};

// A SteppedStoreFixture whose store is on a disk that the test fills or breaks (FaultyDisk).
class FaultyDiskFixture : public SteppedStoreFixture {
 protected:
  ~FaultyDiskFixture() override { store_.reset(); }
  StoreSeams Seams() override {
    StoreSeams seams = SteppedStoreFixture::Seams();
    seams.disk.env = disk_.env();
    return seams;
  }
  // Kills the process, or, if `machine` is true, stops the machine, which loses unsynced data.
  // Afterwards the disk works again.
  void Crash(bool machine, uint64_t seed = 1) {
    disk_.Die();
    store_.reset();
    std::mt19937_64 random(seed);
    disk_.Restart(machine, &random);
  }

  FaultyDisk disk_;
};

// A SteppedStoreFixture whose disk tier returns errors and wrong bytes on command (FaultyTier).
// Scrubbing is off unless a test enables it.
class FaultyTierFixture : public SteppedStoreFixture {
 protected:
  FaultyTierFixture() { options_.scrub.bytes_per_s = 0; }
  ~FaultyTierFixture() override { store_.reset(); }
  StoreSeams Seams() override {
    StoreSeams seams = SteppedStoreFixture::Seams();
    seams.wrap_disk = [this](SliceTier* tier) {
      return std::make_unique<FaultyTier>(tier, &disk_faults_);
    };
    return seams;
  }

  const KitPrompt prompt_ = Prompt(1), other_ = Prompt(2);
  Faults disk_faults_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_STEPPED_STORE_H_
