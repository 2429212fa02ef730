// One flipped bit anywhere in a data folder, or one file that is truncated, emptied or removed: the
// store starts, serves no wrong byte, and reports its losses in a counter, a warning and Explain.
//
// Each damage is applied to a new copy of one folder, in a child process. If the child dies, the
// test fails, and the next child continues after this damage. Flips are chosen by a seed;
// HEARTH_FLIPS=N makes N flips, HEARTH_FLIPS_FIRST=N sets the number of the first. The test prints
// the number of lost restore points.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/disk/backup.h"
#include "cache_store/disk/disk_tier_db.h"
#include "cache_store/disk/verify.h"
#include "cache_store/store/calls/store.h"
#include "tests/support/fake_clock.h"
#include "tests/support/run_in_child.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

uint64_t NumberFrom(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct StoredPoint {
  Fingerprint model;
  KitPrompt prompt;
};

// Returns restore points of two kinds: with slices in the column family of small slices, and with
// slices in tables of their own.
std::vector<StoredPoint> PointsOf(uint64_t first_seed) {
  std::vector<StoredPoint> points;
  for (const auto& [head_dim, count] : std::map<uint32_t, int>{{2, 6}, {64, 3}, {512, 2}}) {
    KitModel geometry;
    geometry.head_dim = head_dim;
    geometry.layer_types = "llllg";
    for (int i = 0; i < count; ++i) {
      points.push_back({geometry.Make(), {KitTokens(first_seed++, 65), {}}});
    }
  }
  return points;
}

class Flips {
 public:
  explicit Flips(const TestFolder& folder) : folder_(folder) {}

  // Creates the folder: restore points in tables, then restore points in the log.
  void MakeFolder() {
    for (const uint64_t first_seed : {1, 100}) {
      {
        const auto store = Open(Base());
        for (const StoredPoint& point : PointsOf(first_seed)) {
          if (!KitPublish(store.get(), point.model, point.prompt, {64}).ok()) std::abort();
        }
        const RestorePoint pinned = store->List("default").at(0);
        if (!store->SetPinned(pinned.id, "default", true).ok()) std::abort();
      }
      if (first_seed > 1) break;
      std::unique_ptr<Database> db;
      if (!Database::Open(Base(), Database::Mode::kOwn, &db).ok()) std::abort();
      if (!(*db)->Flush(rocksdb::FlushOptions(), db->families()).ok()) std::abort();
    }
  }

  // Function that damages a folder and returns a description of the damage.
  using Damage = std::function<std::string(const std::string& folder)>;
  std::string Try(const Damage& damage, bool with_backup, std::string* what) {
    wrong_.str("");
    lines_.clear();
    fs::remove_all(Work());
    fs::copy(Base(), Work(), fs::copy_options::recursive);
    *what = damage(Work());
    VerifyDataDir(Work(), {nullptr, [](absl::Duration) {}}).status().IgnoreError();
    if (with_backup) {
      fs::remove_all(Work() + ".backup");
      BackUpDataDir(Work(), Work() + ".backup").status().IgnoreError();
    }
    Check();
    return wrong_.str();
  }
  size_t lost() const { return lost_; }  // number of restore points that the last damage cost

 private:
  std::string Base() const { return folder_.File("base"); }
  std::string Work() const { return folder_.File("work"); }

  std::unique_ptr<TieredStore> Open(const std::string& dir) {
    StoreOptions options;
    options.data_dir = dir;
    options.host_bytes = 0;
    options.disk_bytes = uint64_t{1} << 30;
    options.scrub.bytes_per_s = uint64_t{1} << 30;
    options.on_warning = [this](const std::string& line) { lines_.push_back(line); };
    absl::StatusOr<std::unique_ptr<TieredStore>> opened =
        OpenStore(options, SteppedSeams(&executor_, &clock_));
    if (opened.ok()) return *std::move(opened);
    wrong_ << "does not start: " << opened.status() << "\n";
    return nullptr;
  }

  void Check() {
    std::unique_ptr<TieredStore> store = Open(Work());
    if (store == nullptr) return;
    std::vector<StoredPoint> all = PointsOf(1);
    for (StoredPoint& point : PointsOf(100)) all.push_back(std::move(point));
    std::vector<const StoredPoint*> lost;
    for (const StoredPoint& point : all) {
      if (!Fetches(store.get(), point)) lost.push_back(&point);
    }
    for (int step = 0; step < 2000; ++step) {
      const absl::Duration pause = static_cast<Store*>(store.get())->ScrubStep();
      if (pause > absl::Hours(1)) break;
      clock_.Advance(pause);
    }
    executor_->RunAll();
    lost_ = lost.size();
    if (!lost.empty()) CheckSaid(store.get(), lost);
    const StoredPoint added{all[0].model, {KitTokens(1000, 65), {}}};
    const absl::Status published =
        KitPublish(store.get(), added.model, added.prompt, {64}).status();
    if (!published.ok()) wrong_ << "takes no publish: " << published << "\n";
    store.reset();
    store = Open(Work());
    if (store == nullptr) return;
    if (!Fetches(store.get(), added)) wrong_ << "lost what was published after\n";
    for (const StoredPoint& point : all) {
      const bool is_lost = std::any_of(lost.begin(), lost.end(),
                                       [&](const StoredPoint* one) { return one == &point; });
      if (!is_lost && !Fetches(store.get(), point)) wrong_ << "lost with the second start\n";
    }
  }

  // Returns whether a fetch of the restore point gives exact bytes for all its tokens.
  bool Fetches(TieredStore* store, const StoredPoint& point) {
    const absl::StatusOr<uint32_t> usable = KitFetch(store, point.model, point.prompt);
    if (absl::IsInternal(usable.status())) wrong_ << "WRONG BYTES: " << usable.status() << "\n";
    executor_->RunAll();
    return usable.ok() && *usable == 64;
  }

  void CheckSaid(TieredStore* store, const std::vector<const StoredPoint*>& lost) {
    const auto counters = store->Stats().counters;
    uint64_t counted = 0;
    for (const char* name :
         {"quarantined_objects", "recovery_dropped_manifests", "recovery_damage"}) {
      counted += counters.at(name);
    }
    if (counted == 0) wrong_ << lost.size() << " lost, and nothing counted it\n";
    const uint64_t each =
        counters.at("quarantined_objects") + counters.at("recovery_lost_restore_points");
    if (each < lost.size()) wrong_ << lost.size() << " lost, and " << each << " counted\n";
    const bool is_said = std::any_of(lines_.begin(), lines_.end(), [](const std::string& line) {
      return absl::StartsWith(line, "damage: ");
    });
    if (!is_said) wrong_ << lost.size() << " lost, and no line said it\n";
    for (const StoredPoint* point : lost) {
      const auto report = store->Explain(KitQuery(point->model, point->prompt));
      if (!report.ok() || !(absl::StrContains(report->summary, "quarantined") ||
                            absl::StrContains(report->summary, "damaged"))) {
        wrong_ << "not explained: " << (report.ok() ? report->summary : "no report") << "\n";
      }
    }
  }

  const TestFolder& folder_;
  FakeClock clock_;
  ManualExecutor* executor_ = nullptr;
  std::vector<std::string> lines_;
  std::ostringstream wrong_;
  size_t lost_ = 0;
};

// Returns the files of the database in a fixed order.
std::vector<fs::path> FilesOf(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder + "/db")) {
    if (entry.is_regular_file() && entry.file_size() > 0) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Flips one bit of one file. Half of the flips are near the end of the file, where tables and
// manifests have their most important data.
std::string Flip(const std::string& folder, uint64_t flip) {
  std::mt19937_64 random(flip);
  const std::vector<fs::path> files = FilesOf(folder);
  fs::path path = files[random() % files.size()];
  if (flip % 32 == 7) path = folder + "/points";
  const uint64_t size = fs::file_size(path);
  constexpr uint64_t kEnd = 1500;
  uint64_t at = random() % size;
  if (random() % 2 == 0 && size > kEnd) at = size - 1 - at % kEnd;
  const int bit = static_cast<int>(random() % 8);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ 1 << bit));
  return absl::StrCat(path.filename().string(), ", byte ", at, " of ", size, ", bit ", bit);
}

// Applies damage number `hit` (three for each file: truncated, empty, removed). Returns "" if there
// are no more.
std::string CutEmptyOrRemove(const std::string& folder, uint64_t hit) {
  std::vector<fs::path> files = FilesOf(folder);
  files.emplace_back(folder + "/points");
  if (hit / 3 >= files.size()) return "";
  const fs::path& path = files[hit / 3];
  constexpr const char* kHits[] = {"cut: ", "emptied: ", "removed: "};
  if (hit % 3 == 0) fs::resize_file(path, fs::file_size(path) / 2);
  if (hit % 3 == 1) fs::resize_file(path, 0);
  if (hit % 3 == 2) fs::remove(path);
  return absl::StrCat(kHits[hit % 3], path.filename().string());
}

class DamageAtRest : public ::testing::Test {
 protected:
  DamageAtRest() {
    // Use a folder in memory if possible, because the test makes hundreds of copies and syncs.
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0);
    folder_ = std::make_unique<TestFolder>();
    EXPECT_EQ(RunInChild([&] { Flips(*folder_).MakeFolder(); }), 0);
  }

  // Applies the damages with numbers from `first` to `end` - 1, or until `damage` returns "".
  // Returns a map from the number of lost restore points to the number of damages with this loss.
  using Numbered = std::function<std::string(const std::string& folder, uint64_t number)>;
  std::map<size_t, int> TryAll(uint64_t first, uint64_t end, const Numbered& damage) {
    for (uint64_t next = first; next < end;) {
      const int status = RunInChild([&] { TryFrom(next, end, damage); });
      if (status == 0) break;
      const uint64_t at = std::strtoull(folder_->Read("at").c_str(), nullptr, 10);
      ADD_FAILURE() << "number " << at << ": the process ended with " << status;
      next = at + 1;
    }
    EXPECT_EQ(folder_->Read("wrong"), "");
    std::map<size_t, int> costs;
    std::istringstream lines(folder_->Read("costs"));
    for (size_t lost = 0; lines >> lost;) ++costs[lost];
    for (const auto& [lost, times] : costs) {
      std::cout << times << " cost " << lost << " of " << kPoints << " points\n";
    }
    return costs;
  }

  // Two calls of PointsOf: half of the restore points are in tables, half in the log.
  static constexpr size_t kPoints = 22;

 private:
  void TryFrom(uint64_t first, uint64_t end, const Numbered& damage) {
    Flips flips(*folder_);
    for (uint64_t number = first; number < end; ++number) {
      std::ofstream(folder_->File("at")) << number;
      std::string what;
      const std::string wrong =
          flips.Try([&](const std::string& folder) { return damage(folder, number); },
                    number % 8 == 0, &what);
      if (what.empty()) return;
      std::ofstream(folder_->File("costs"), std::ios::app) << flips.lost() << "\n";
      if (wrong.empty()) continue;
      std::ofstream(folder_->File("wrong"), std::ios::app)
          << "number " << number << ": " << what << "\n"
          << wrong;
    }
  }

  std::unique_ptr<TestFolder> folder_;
};

TEST_F(DamageAtRest, LossByFlippedBitIsReported) {
  const uint64_t first = NumberFrom("HEARTH_FLIPS_FIRST", 1);
  const uint64_t flips = NumberFrom("HEARTH_FLIPS", 120);
  EXPECT_FALSE(TryAll(first, first + flips, Flip).empty());
}

TEST_F(DamageAtRest, LossByDamagedFileIsReported) {
  EXPECT_FALSE(TryAll(0, 1000, CutEmptyOrRemove).empty());
}

}  // namespace
}  // namespace hearth
