// Acknowledged points that are gone: a start counts, reports and explains them, and erases nothing
// that may bring them back. Points that were erased, or never acknowledged, are not missed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/disk/backup.h"
#include "cache_store/disk/disk_tier_db.h"
#include "cache_store/disk/files/disk_tier_manifest.h"
#include "cache_store/disk/files/disk_tier_records.h"
#include "cache_store/disk/promises/promises.h"
#include "cache_store/store/store_seams.h"
#include "tests/support/fake_clock.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

class LostPoints : public ::testing::Test {
 protected:
  LostPoints() {
    KitModel geometry;
    geometry.head_dim = 1024;
    geometry.layer_types = "llllg";
    large_ = geometry.Make();
  }
  void Open(const std::string& name = "data") {
    store_.reset();
    lines_.clear();
    StoreOptions options;
    options.data_dir = folder_.File(name);
    options.host_bytes = 0;
    options.disk_bytes = uint64_t{1} << 30;
    options.on_warning = [this](const std::string& line) { lines_.push_back(line); };
    StoreSeams seams = SteppedSeams(&executor_, &clock_);
    seams.disk_env = disk_.env();
    seams.boot = boot_;
    absl::StatusOr<std::unique_ptr<TieredStore>> opened = OpenStore(options, std::move(seams));
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }
  void Publish(uint64_t seed, Durability level = Durability::kDisk, bool is_large = false) {
    const auto& model = is_large ? large_ : model_;
    const absl::Status status = KitPublish(store_.get(), model, Prompt(seed), {64}, level).status();
    ASSERT_TRUE(status.ok()) << status;
  }
  uint32_t Fetch(uint64_t seed, bool is_large = false) {
    return KitFetch(store_.get(), is_large ? large_ : model_, Prompt(seed)).value_or(0);
  }
  static KitPrompt Prompt(uint64_t seed) { return {KitTokens(seed, 65), {}}; }
  uint64_t Counted(const char* name) { return store_->Stats().counters.at(name); }
  uint64_t Lost() { return Counted("recovery_lost_restore_points"); }
  std::vector<fs::path> Files(const std::string& ending, const std::string& where = "data/db") {
    std::vector<fs::path> paths;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder_.File(where), none)) {
      if (absl::EndsWith(entry.path().string(), ending)) paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }
  // Eight large ones, of which the end of the manifest named the last.
  void PublishAndCutManifest() {
    Open();
    for (uint64_t seed = 1; seed <= 3; ++seed) Publish(seed, Durability::kDisk, true);
    Open();
    for (uint64_t seed = 4; seed <= 8; ++seed) Publish(seed, Durability::kDisk, true);
    store_.reset();
    for (const auto& entry : fs::directory_iterator(folder_.File("data/db"))) {
      const std::string name = entry.path().filename().string();
      if (!absl::StartsWith(name, kManifestPrefix)) continue;
      const std::string bytes = folder_.Read("data/db/" + name);
      size_t records = 0, at = 0;
      while (const auto piece = LogPieceAt(bytes, at)) ++records, at = piece->end;
      at = 0;
      for (size_t i = 0; i + 4 < records; ++i) at = LogPieceAt(bytes, at)->end;
      fs::resize_file(entry.path(), at);
    }
  }
  // Of the seeds 1 to `count`, those not found; each is explained, and they are all that is
  // counted.
  size_t CheckLost(uint64_t count) {
    size_t lost = 0;
    store_->Observe(model_, "default");
    for (uint64_t seed = 1; seed <= count; ++seed) {
      if (Fetch(seed) == 64) continue;
      ++lost;
      const auto report = store_->Explain(KitQuery(model_, Prompt(seed))).value();
      EXPECT_THAT(report.summary, HasSubstr("lost: it was acknowledged")) << seed;
    }
    EXPECT_EQ(Lost(), lost);
    EXPECT_EQ(store_->Stats().removed.at("lost"), lost);
    if (lost > 0) {
      EXPECT_THAT(lines_, Contains(HasSubstr("that were acknowledged are lost")));
    }
    return lost;
  }

  const TestFolder folder_;
  const std::string promises_ = PromisesPath(folder_.File("data"));
  BootId boot_ = {1};
  FaultyDisk disk_;
  FakeClock clock_;
  Fingerprint model_ = KitModel().Make(), large_ = model_;
  std::vector<std::string> lines_;
  ManualExecutor* executor_ = nullptr;
  std::unique_ptr<TieredStore> store_;
};

TEST_F(LostPoints, OfALogThatIsGoneAreCountedSaidAndExplainedOnce) {
  Open();
  for (uint64_t seed = 1; seed <= 30; ++seed) Publish(seed);
  store_.reset();
  for (const fs::path& log : Files(".log")) fs::remove(log);
  Open();
  EXPECT_EQ(CheckLost(30), 30u);
  EXPECT_EQ(Counted("recovery_damage"), 1u);
  Publish(31);
  Open();
  EXPECT_EQ(Lost(), 0u);
  EXPECT_EQ(Fetch(31), 64u);
}

TEST_F(LostPoints, AFlippedBitOfTheLogCostsNothing) {
  Open();
  for (uint64_t seed = 1; seed <= 30; ++seed) Publish(seed);
  store_.reset();
  const fs::path log = Files(".log").back();
  std::mt19937_64 random(1);
  for (const int part : {0, 1}) {
    const uint64_t half = fs::file_size(log) / 2, at = part * half + random() % half;
    std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 4));
  }
  Open();
  EXPECT_EQ(CheckLost(30), 0u);
  EXPECT_EQ(Counted("recovery_damage"), 1u);
  EXPECT_THAT(lines_, Contains(HasSubstr("2 flipped bits were put right, nothing is lost")));
  EXPECT_EQ(Files(".log", "data/lost").size(), 1u);
}

TEST_F(LostPoints, OfAGarbledLogAreAtMostThoseOfItsBlock) {
  Open();
  for (uint64_t seed = 1; seed <= 60; ++seed) Publish(seed);
  store_.reset();
  const fs::path log = Files(".log").back();
  ASSERT_GT(fs::file_size(log), 3 * kLogBlockBytes);
  {
    std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(kLogBlockBytes + 100);
    file << std::string(600, 'x');
  }
  Open();
  const size_t lost = CheckLost(60);
  EXPECT_GT(lost, 0u);
  EXPECT_LT(lost, 30u);
  EXPECT_EQ(Fetch(1), 64u);
  EXPECT_EQ(Fetch(60), 64u);
}

TEST_F(LostPoints, OfACutManifestEraseNothing) {
  PublishAndCutManifest();
  const std::vector<fs::path> tables = Files(".sst");
  // Nor does a backup, though it opens the folder for writing; and it is refused.
  EXPECT_THAT(
      std::string(BackUpDataDir(folder_.File("data"), folder_.File("to")).status().message()),
      HasSubstr("no backup was made: of "));
  for (const fs::path& table : tables) EXPECT_TRUE(fs::exists(table)) << table;
  Open();
  size_t found = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) found += Fetch(seed, true) == 64 ? 1 : 0;
  EXPECT_LT(found, 8u);
  EXPECT_EQ(Lost(), 8 - found);
  EXPECT_GT(Counted("recovery_damage"), 0u);
  // Files that the start gave up are still in the folder, and must not be backed up as if whole.
  const absl::Status running = store_->BackUp(folder_.File("running")).status();
  EXPECT_TRUE(absl::IsDataLoss(running)) << running;
  EXPECT_THAT(std::string(running.message()), HasSubstr("no backup was made: of "));
  EXPECT_FALSE(fs::exists(folder_.File("running")));
  EXPECT_EQ(Counted("recovery_collected_objects"), 0u);
  executor_->RunAll();
  store_.reset();
  for (const fs::path& table : tables) {
    EXPECT_TRUE(fs::exists(table) || fs::exists(folder_.File("data/lost") / table.filename()))
        << table;
  }
}

TEST_F(LostPoints, EraseNothingWhereNothingCanBeKeptInLost) {
  PublishAndCutManifest();
  const std::vector<fs::path> tables = Files(".sst");
  folder_.Write("data/lost", "no folder");
  Open();
  EXPECT_GT(Lost(), 0u);
  EXPECT_THAT(lines_, Contains(HasSubstr("cannot be kept in ")));
  executor_->RunAll();
  store_.reset();
  for (const fs::path& table : tables) EXPECT_TRUE(fs::exists(table)) << table;
}

TEST_F(LostPoints, PromisesThatAreDamagedOrGoneAreSaidAndNothingElseHappens) {
  Open();
  for (uint64_t seed = 1; seed <= 10; ++seed) Publish(seed);
  const auto expect_said = [&](const char* line) {
    SCOPED_TRACE(line);
    Open();
    EXPECT_EQ(CheckLost(10), 0u);
    EXPECT_THAT(lines_, Contains(HasSubstr(line)));
    Open();
    EXPECT_EQ(Counted("recovery_damage"), 0u);
    EXPECT_TRUE(store_->BackUp(folder_.File("backup")).ok()) << "a start without damage";
    EXPECT_EQ(CheckLost(10), 0u);
    store_.reset();
  };
  store_.reset();
  {
    std::fstream file(promises_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4 * kPromiseBytes + 20);
    file.put('x');
  }
  expect_said("1 of its entries");
  fs::resize_file(promises_, 5 * kPromiseBytes + 11);
  expect_said("2 of its entries");  // that the first was said is cut off with the rest
  fs::remove(promises_);
  expect_said("cannot be read");
  fs::resize_file(promises_, 0);
  expect_said("is damaged");
}

TEST_F(LostPoints, AreNotThoseThatWereDroppedOrExpired) {
  for (int life = 0; life < 3; ++life) {
    Open();
    EXPECT_EQ(Lost(), 0u);
    EXPECT_EQ(Counted("recovery_damage"), 0u);
    for (uint64_t seed = 1; seed <= 6; ++seed) Publish(100 * life + seed);
    for (const RestorePoint& point : store_->List("default")) {
      if (point.id[0] % 2 == 0) {
        EXPECT_TRUE(store_->Drop(point.id, "default", true).ok());
      }
    }
    PublishSpec brief = KitSpec(model_, Prompt(100 * life + 50), {64});
    brief.ttl = absl::Seconds(5);
    auto session = store_->Publish(brief).value();
    ASSERT_TRUE(KitPutAll(session.get(), brief, model_, Prompt(100 * life + 50)).ok());
    ASSERT_TRUE(session->Commit().ok());
    session.reset();
    clock_.Advance(absl::Seconds(10));
    static_cast<SteppedStore*>(store_.get())->UpkeepStep();
  }
}

TEST_F(LostPoints, AMachineThatStopsTakesBackWhatWasPromisedAsDiskAndNoMore) {
  std::mt19937_64 random(7);
  for (int life = 0; life < 12; ++life) {
    SCOPED_TRACE(life);
    Open();
    EXPECT_EQ(Lost(), 0u) << "life " << life;
    EXPECT_EQ(Counted("recovery_dropped_manifests"), 0u);
    for (uint64_t i = 0; i < 12; ++i) {
      Publish(1 + 20 * life + i, i % 4 == 0 ? Durability::kSync : Durability::kDisk);
      if (i % 3 == 2) store_->Drop(store_->List("default")[0].id, "default", true).IgnoreError();
    }
    const bool is_machine = life % 3 != 2;
    disk_.Die();
    store_.reset();
    disk_.Restart(is_machine, &random);
    if (is_machine) ++boot_[1];
  }
}

// Each step of publishes and of an erase in turn: what was not acknowledged is not missed, nor what
// was dropped, and what was acknowledged is there.
TEST_F(LostPoints, AreNoneWhereverAWriteFailsAndTheProcessOrTheMachineEnds) {
  int struck = 0;
  std::mt19937_64 random(3);
  for (int nth = 1; nth <= 20; ++nth) {
    SCOPED_TRACE(nth);
    Open();
    Publish(1, Durability::kSync);
    Publish(2, Durability::kSync);
    disk_.Arm(nth % 2 == 0 ? DiskFault::kFailedWrite : DiskFault::kShortWrite, (nth + 1) / 2);
    const int before = disk_.struck();
    std::vector<uint64_t> acknowledged;
    for (const uint64_t seed : {3, 4, 5}) {
      const auto level = seed == 4 ? Durability::kDisk : Durability::kSync;
      if (KitPublish(store_.get(), model_, Prompt(seed), {64}, level).ok()) {
        acknowledged.push_back(seed);
      }
      if (seed == 3) store_->Drop(store_->List("default")[0].id, "default", true).IgnoreError();
    }
    struck += disk_.struck() - before;
    const bool is_machine = nth % 4 < 2;
    disk_.Die();
    store_.reset();
    disk_.Restart(is_machine, &random);
    if (is_machine) ++boot_[1];
    Open();
    EXPECT_EQ(Lost(), 0u);
    // One of them may be what was dropped.
    size_t missing = 0;
    for (const uint64_t seed : acknowledged) {
      const bool may_go = is_machine && seed == 4 && acknowledged.back() == 4;
      missing += !may_go && Fetch(seed) != 64 ? 1 : 0;
    }
    EXPECT_LE(missing, 1u);
    store_.reset();
    fs::remove_all(folder_.File("data"));
  }
  EXPECT_GT(struck, 10);
}

TEST_F(LostPoints, AFullDiskRefusesThePromiseAndTakesTheNext) {
  Open();
  Publish(1);
  // Room for the database's records, which are a page or so, and then for none of the promise.
  for (uint64_t room = 0; room < 24; ++room) {
    disk_.SetRoom(room * 512);
    const absl::Status refused =
        KitPublish(store_.get(), model_, Prompt(100 + room), {64}, Durability::kSync).status();
    disk_.SetRoom(FaultyDisk::kAmple);
    if (refused.ok()) continue;
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("No space left on device"));
    absl::Status taken = KitPublish(store_.get(), model_, Prompt(200 + room), {64}).status();
    if (!taken.ok()) taken = KitPublish(store_.get(), model_, Prompt(200 + room), {64}).status();
    EXPECT_TRUE(taken.ok()) << taken;
  }
  Open();
  EXPECT_EQ(Lost(), 0u);
  EXPECT_EQ(Counted("recovery_damage"), 0u);
  EXPECT_EQ(Fetch(1), 64u);
}

TEST_F(LostPoints, AreMissedAfterAProcessThatDiedAndAfterAMachineThatStoppedCleanly) {
  for (const bool is_machine : {true, false}) {
    Open();
    Publish(1);
    if (!is_machine) disk_.Die();
    store_.reset();
    std::mt19937_64 random(1);
    disk_.Restart(is_machine, &random);
    if (is_machine) ++boot_[1];
    for (const fs::path& log : Files(".log")) fs::remove(log);
    Open();
    EXPECT_EQ(CheckLost(1), 1u);
    store_.reset();
    fs::remove_all(folder_.File("data"));
  }
}

TEST_F(LostPoints, ARestoredBackupMissesNothing) {
  Open();
  for (uint64_t seed = 1; seed <= 5; ++seed) Publish(seed);
  store_.reset();
  ASSERT_TRUE(BackUpDataDir(folder_.File("data"), folder_.File("backup")).ok());
  Open();
  for (uint64_t seed = 6; seed <= 9; ++seed) Publish(seed);
  store_.reset();
  ASSERT_TRUE(RestoreDataDir(folder_.File("backup"), folder_.File("again")).ok());
  Open("again");
  EXPECT_EQ(CheckLost(5), 0u);
  EXPECT_EQ(Counted("recovery_damage"), 0u);
}

TEST_F(LostPoints, TheFileOfPromisesIsWrittenAnewWhenMostOfItIsDead) {
  Open();
  // Beside what goes on: when it is done nobody can tell from here.
  uint64_t most = 0;
  for (uint64_t now = 0; now >= most && most < 40000 * kPromiseBytes;
       now = fs::file_size(promises_)) {
    most = now;
    for (uint64_t seed = 1; seed <= 40; ++seed) Publish(seed);
    ASSERT_TRUE(store_->DropAll("default", true).ok());
  }
  EXPECT_GT(most, 4096 * kPromiseBytes);
  EXPECT_LT(fs::file_size(promises_), most);
  Publish(1);
  Open();
  EXPECT_EQ(CheckLost(1), 0u);
}

}  // namespace
}  // namespace hearth
