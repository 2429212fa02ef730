// A mixed load on a failing disk and a crashing machine, compared with a model of what the store
// promises. Operations are chosen by a seed; HEARTH_CRASH_SEEDS=N runs N seeds instead of a few,
// HEARTH_CRASH_FIRST_SEED sets the first.
//
// A run is a sequence of lives. Each life has some operations, one kind of fault, and an end: a
// clean close, the death of the process, or of the machine. Always: no fetch returns a wrong byte,
// and no incomplete restore point is visible. Unless bits were flipped:
//
//  - A restore point acknowledged as `disk` is there after the next start, unless the machine died;
//    a point acknowledged as `sync` always is.
//  - A point listed as durable is there unless the machine died, even if there is little free
//    space.
//  - A point that was gone before a clean close does not reappear.
//  - No manifest outlives its objects.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "cache_store/disk/verify.h"
#include "cache_store/store/calls/store.h"
#include "tests/support/fake_clock.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_checks.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr int kLives = 12;
constexpr int kStepsOfALife = 30;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

enum class Trouble { kNone, kFailedWrite, kShortWrite, kFailedSync, kFull, kFailedRead, kFlip };
enum class End { kClose, kDeath, kMachine };

class CrashRun {
 public:
  explicit CrashRun(uint64_t seed)
      : random_(seed), ample_(seed % 3 != 0), may_flip_(seed % 2 == 0) {
    KitModel geometry;
    // slices of 32 KiB: a long prompt is written as a table, a short prompt is not
    geometry.head_dim = 256;
    geometry.layer_types = "llllg";
    model_ = geometry.Make();
  }

  void Run() {
    for (int life = 0; life < kLives && !::testing::Test::HasFatalFailure(); ++life) {
      SCOPED_TRACE(::testing::Message() << "life " << life);
      Open();
      if (store_ == nullptr) return;
      CheckPromises();
      trouble_ = static_cast<Trouble>(random_() % (may_flip_ ? 7 : 6));
      Arm();
      for (int step = 0; step < kStepsOfALife && !::testing::Test::HasFatalFailure(); ++step)
        Step();
      Finish(static_cast<End>(random_() % 3));
    }
    Open();
    CheckPromises();
    store_.reset();
    const VerifyReport report = VerifyDataDir(folder_.path()).value();
    EXPECT_TRUE(flipped_ || report.ok()) << report.problems[0];
  }
  int struck() const { return struck_; }
  uint64_t promises() const { return promises_; }

 private:
  enum class Promise { kNone, kDisk, kSync };
  using Point = std::pair<uint64_t, uint32_t>;  // number of the prompt, boundary

  void Open() {
    StoreOptions options;
    options.data_dir = folder_.path();
    options.host_bytes = 4 << 20;
    options.disk_bytes = ample_ ? uint64_t{1} << 30 : uint64_t{12} << 20;
    said_.clear();
    options.on_warning = [this](const std::string& line) { said_ += line + "\n"; };
    StoreSeams seams = SteppedSeams(&executor_, &clock_);
    seams.disk.env = disk_.env();
    seams.disk.boot = boot_;
    absl::StatusOr<std::unique_ptr<TieredStore>> opened = OpenStore(options, std::move(seams));
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }

  Store* store() { return static_cast<Store*>(store_.get()); }

  void Arm() {
    const int nth = 1 + static_cast<int>(random_() % 40);
    if (trouble_ == Trouble::kFailedWrite) disk_.Arm(DiskFault::kFailedWrite, nth);
    if (trouble_ == Trouble::kShortWrite) disk_.Arm(DiskFault::kShortWrite, nth);
    if (trouble_ == Trouble::kFailedSync) disk_.Arm(DiskFault::kFailedSync, 1 + nth / 4);
    if (trouble_ == Trouble::kFailedRead) disk_.Arm(DiskFault::kFailedRead, nth);
    if (trouble_ == Trouble::kFlip) disk_.Arm(DiskFault::kFlippedBit, nth);
    flipped_ |= trouble_ == Trouble::kFlip;
  }

  // Returns a prompt. Groups of three prompts, one short and two long, have a common beginning.
  static KitPrompt PromptOf(uint64_t prompt) {
    return KitPrompt{KitTokens(prompt / 3, prompt % 3 == 0 ? 33 : 129), {}};
  }

  void Step() {
    clock_.Advance(absl::Seconds(1));
    if (trouble_ == Trouble::kFull && random_() % 8 == 0) disk_.SetFull(full_ = !full_);
    const uint64_t dice = random_() % 100;
    if (dice < 40) {
      Publish();
    } else if (dice < 65) {
      Fetch(random_() % next_prompt_);
    } else if (dice < 75) {
      executor_->RunAll();
    } else if (dice < 88) {
      for (int i = 0; i < 20; ++i) clock_.Advance(store()->ScrubStep());
    } else if (dice < 95) {
      Pin();
    } else {
      Drop();
    }
    CheckInvariants(store());
  }

  void Publish() {
    const bool again = random_() % 4 == 0;
    const uint64_t prompt = again ? random_() % next_prompt_ : next_prompt_++;
    const KitPrompt kit = PromptOf(prompt);
    std::vector<uint32_t> boundaries = {16, 32};
    if (kit.tokens.size() > 100) boundaries = {32, 96, 128};
    const Durability level = static_cast<Durability>(static_cast<int>(Durability::kMemory) +
                                                     static_cast<int>(random_() % 3));
    const auto result = KitPublish(store_.get(), model_, kit, boundaries, level);
    if (!result.ok()) return;
    for (const uint32_t boundary : result->boundaries) {
      if (result->durable != Durability::kMemory) Promised({prompt, boundary}, result->durable);
    }
    // Everything that was acknowledged before a sync is also synced, because the log is ordered.
    if (result->durable == Durability::kSync) {
      for (auto& [point, promise] : promised_) promise = Promise::kSync;
    }
  }

  void Promised(const Point& point, Durability level) {
    ++promises_;
    Promise& promise = promised_[point];
    promise = std::max(promise, level == Durability::kSync ? Promise::kSync : Promise::kDisk);
  }

  // Returns the number of usable tokens. Expects a miss or exact bytes; an error is allowed only
  // while the disk has a fault.
  uint32_t Fetch(uint64_t prompt, uint32_t boundary = 0) {
    KitPrompt kit = PromptOf(prompt);
    if (boundary > 0) kit.tokens.resize(boundary + 1);
    const absl::StatusOr<uint32_t> usable = KitFetch(store_.get(), model_, kit);
    if (usable.ok()) return *usable;
    EXPECT_NE(usable.status().code(), absl::StatusCode::kInternal) << usable.status();
    EXPECT_TRUE(trouble_ == Trouble::kFailedRead || trouble_ == Trouble::kFlip || flipped_)
        << usable.status();
    return 0;
  }

  void Pin() {
    const std::vector<RestorePoint> all = store_->List("default");
    if (all.empty()) return;
    store_->SetPinned(all[random_() % all.size()].id, "default", random_() % 2 == 0).IgnoreError();
  }

  void Drop() {
    const std::vector<RestorePoint> all = store_->List("default");
    if (all.empty()) return;
    const RestorePoint& chosen = all[random_() % all.size()];
    store_->Drop(chosen.id, "default", true).status().IgnoreError();
    for (auto it = promised_.begin(); it != promised_.end();) {
      const KitPrompt kit = PromptOf(it->first.first);
      const std::vector<uint32_t>& last = chosen.last_token_ids;
      const bool hit =
          it->first.second == chosen.tokens &&
          std::equal(last.begin(), last.end(), kit.tokens.begin() + chosen.tokens - last.size());
      it = hit ? promised_.erase(it) : std::next(it);
    }
  }

  void Finish(End end) {
    last_ = absl::StrCat("after trouble ", static_cast<int>(trouble_), ", end ",
                         static_cast<int>(end), ", ", disk_.struck() - struck_before_, " strikes");
    if (end == End::kClose) executor_->RunAll();
    durable_.clear();
    for (const RestorePoint& point : store_->List("default")) {
      if (point.durable && end != End::kMachine) durable_.insert(point.id);
    }
    nothing_new_ = end == End::kClose && disk_.struck() == struck_before_;
    if (end != End::kClose) disk_.Die();
    store_.reset();
    struck_ += disk_.struck() - struck_before_;
    struck_before_ = disk_.struck();
    disk_.Restart(end == End::kMachine, &random_);
    if (end == End::kMachine) ++boot_;
    full_ = false;
    trouble_ = Trouble::kNone;
    if (end != End::kMachine) return;
    for (auto it = promised_.begin(); it != promised_.end();) {
      it = it->second == Promise::kSync ? std::next(it) : promised_.erase(it);
    }
  }

  void CheckPromises() {
    EXPECT_TRUE(flipped_ || store_->Stats().counters.at("recovery_dropped_manifests") == 0u)
        << last_;
    EXPECT_TRUE(flipped_ || store_->Stats().counters.at("recovery_lost_restore_points") == 0u)
        << last_;
    EXPECT_TRUE(flipped_ || store_->Stats().counters.at("recovery_damage") == 0u)
        << last_ << ": " << said_;
    if (!flipped_) CheckDurable();
    if (ample_ && !flipped_) {
      for (const auto& [point, promise] : promised_) {
        EXPECT_EQ(Fetch(point.first, point.second), point.second)
            << "prompt " << point.first << " was acknowledged as "
            << (promise == Promise::kSync ? "sync" : "disk") << ", " << last_;
      }
    }
    for (uint64_t prompt = 0; prompt < next_prompt_; ++prompt) Fetch(prompt);
  }

  void CheckDurable() {
    std::set<Digest> found;
    for (const RestorePoint& point : store_->List("default")) found.insert(point.id);
    for (const Digest& id : durable_) EXPECT_EQ(found.count(id), 1u) << "lost " << last_;
    if (nothing_new_) {
      EXPECT_EQ(found.size(), durable_.size()) << "came back " << last_;
    }
  }

  const TestFolder folder_;
  Fingerprint model_ = KitModel().Make();
  std::mt19937_64 random_;
  const bool ample_, may_flip_;
  BootId boot_ = 1;
  FaultyDisk disk_;
  FakeClock clock_;
  std::string said_;  // warnings of the last start
  ManualExecutor* executor_ = nullptr;
  std::unique_ptr<TieredStore> store_;
  Trouble trouble_ = Trouble::kNone;
  bool full_ = false, flipped_ = false;
  // About the previous life: a description, its durable restore points at the end, and whether only
  // these can be on disk.
  std::string last_;
  std::set<Digest> durable_;
  bool nothing_new_ = false;
  uint64_t next_prompt_ = 1, promises_ = 0;
  int struck_ = 0, struck_before_ = 0;
  std::map<Point, Promise> promised_;
};

TEST(StoreCrash, CrashLosesNoAcknowledgedPoint) {
  const uint64_t first = FromEnvironment("HEARTH_CRASH_FIRST_SEED", 1);
  const uint64_t seeds = FromEnvironment("HEARTH_CRASH_SEEDS", 5);
  int struck = 0;
  uint64_t promises = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "HEARTH_CRASH_FIRST_SEED=" << seed);
    CrashRun run(seed);
    run.Run();
    struck += run.struck();
    promises += run.promises();
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(struck, 0) << "no fault ever struck: the test tests nothing";
  EXPECT_GT(promises, 50u);
}

}  // namespace
}  // namespace hearth
