// Random damage to several files of a data folder at once, and then its repair: no abort, no wrong
// byte, a whole folder after it; and a repair that is killed at each of its steps.
//
// In child processes, as flip_test.cc. Seeded; HEARTH_REPAIRS=N makes N of them,
// HEARTH_REPAIRS_FIRST=N begins with another than the first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/disk/repair/repair.h"
#include "cache_store/disk/verify.h"
#include "tests/cache_store/disk/repair_kit.h"
#include "tests/support/run_in_child.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

constexpr int kKilled = 9;

uint64_t RepairsFrom(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class DamagedFolder {
 public:
  explicit DamagedFolder(const TestFolder& folder) : folder_(folder) {}

  std::string Base() const { return folder_.File("base"); }
  std::string Work() const { return folder_.File("work"); }
  void Renew() const {
    fs::remove_all(Work());
    fs::copy(Base(), Work(), fs::copy_options::recursive);
  }

  // Of one to six files: bits, a run of bytes, its end, all of it.
  std::string Damage(uint64_t seed) const {
    std::mt19937_64 random(seed);
    std::string what;
    const uint64_t count = 1 + random() % 6;
    for (uint64_t i = 0; i < count; ++i) {
      std::vector<fs::path> files;
      for (const auto& entry : fs::directory_iterator(Work() + "/db")) {
        if (entry.is_regular_file() && entry.file_size() > 0) files.push_back(entry.path());
      }
      std::sort(files.begin(), files.end());
      const fs::path path = files[random() % files.size()];
      const uint64_t size = fs::file_size(path), at = random() % size;
      const uint64_t kind = random() % 8;
      absl::StrAppend(&what, path.filename().string(), " of ", size, ": ", kind, " at ", at, "\n");
      if (kind == 0) {
        fs::remove(path);
      } else if (kind <= 2) {
        fs::resize_file(path, at);
      } else {
        Spoil(path, at, kind <= 5 ? 1 : std::min<uint64_t>(size - at, 1 + random() % 5000),
              &random);
      }
    }
    return what;
  }

  // Errors of the repaired folder, or an empty text; `*served`: the number of its points.
  std::string Check(int* served) const {
    const auto verified = VerifyDataDir(Work());
    if (!verified.ok()) return absl::StrCat("not whole: ", verified.status().ToString(), "\n");
    if (!verified->is_whole()) return absl::StrCat("not whole: ", verified->problems.back(), "\n");
    auto store = OpenRepaired(Work());
    if (!store.ok()) return absl::StrCat("does not start: ", store.status().ToString(), "\n");
    std::string wrong;
    const std::vector<bool> all = ServedPoints(store->get(), &wrong);
    *served = static_cast<int>(std::count(all.begin(), all.end(), true));
    if ((*store)->Stats().counters.at("recovery_dropped_manifests") > 0) {
      wrong += "the store dropped what was kept\n";
    }
    return wrong;
  }

 private:
  static void Spoil(const fs::path& path, uint64_t at, uint64_t bytes, std::mt19937_64* random) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    for (uint64_t i = at; i < at + bytes; ++i) {
      file.seekg(static_cast<std::streamoff>(i));
      const char byte = static_cast<char>(file.get());
      file.seekp(static_cast<std::streamoff>(i));
      file.put(static_cast<char>(byte ^ 1 << (*random)() % 8));
    }
  }

  const TestFolder& folder_;
};

class RepairDamage : public ::testing::Test {
 protected:
  RepairDamage() : damaged_(folder_) {}
  // Copies and syncs by the hundred: in memory where there is such a folder.
  static void SetUpTestSuite() {
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0);
  }
  void SetUp() override {
    ASSERT_EQ(RunInChild([&] { FillForRepair(damaged_.Base()); }), 0);
  }
  // Of a repair, as it says them; of those that only read the first.
  std::vector<std::string> Steps() const {
    damaged_.Renew();
    RunInChild([&] {
      RepairOptions options;
      options.on_progress = [&](const std::string& step) {
        std::ofstream(folder_.File("steps"), std::ios::app) << step << "\n";
      };
      RepairDataDir(damaged_.Work(), options).status().IgnoreError();
    });
    std::ifstream said(folder_.File("steps"));
    std::vector<std::string> steps;
    for (std::string step; std::getline(said, step);) {
      if (steps.empty() || !absl::StartsWith(step, "reading")) steps.push_back(step);
    }
    return steps;
  }
  // As it was, so that it does not start, or repaired; and if it was, repaired by the next.
  void RepairAgain(const std::string& step) const {
    int served = 0;
    std::string wrong;
    if (!VerifyDataDir(damaged_.Work()).ok()) {
      const auto again = RepairDataDir(damaged_.Work(), {});
      if (!again.ok()) wrong = again.status().ToString();
    }
    wrong += damaged_.Check(&served);
    if (served != kRepairPoints) absl::StrAppend(&wrong, served, " points\n");
    if (!wrong.empty()) Wrong(absl::StrCat(step, ": ", wrong));
  }
  void Wrong(const std::string& text) const {
    std::ofstream(folder_.File("wrong"), std::ios::app) << text;
  }

  const TestFolder folder_;
  const DamagedFolder damaged_;
};

TEST_F(RepairDamage, OfAnyFilesAtOnceIsRepairedToWhatIsRight) {
  const uint64_t first = RepairsFrom("HEARTH_REPAIRS_FIRST", 1);
  const uint64_t end = first + RepairsFrom("HEARTH_REPAIRS", 40);
  const auto attempt = [&](uint64_t seed) {
    damaged_.Renew();
    const std::string what = damaged_.Damage(seed);
    const auto report = RepairDataDir(damaged_.Work(), {});
    std::string wrong;
    int served = 0;
    if (!report.ok()) {
      wrong = report.status().ToString() + "\n";
    } else if (wrong = damaged_.Check(&served);
               wrong.empty() && !report->was_healthy &&
               static_cast<uint64_t>(served) != report->restore_points) {
      wrong = absl::StrCat("said ", report->restore_points, ", served ", served, "\n");
    }
    std::ofstream(folder_.File("served"), std::ios::app) << served << "\n";
    if (!wrong.empty()) Wrong(absl::StrCat("HEARTH_REPAIRS_FIRST=", seed, ":\n", what, wrong));
  };
  for (uint64_t next = first; next < end;) {
    const int status = RunInChild([&] {
      for (uint64_t seed = next; seed < end; ++seed) {
        std::ofstream(folder_.File("at")) << seed;
        attempt(seed);
      }
    });
    if (status == 0) break;
    const uint64_t at = std::strtoull(folder_.Read("at").c_str(), nullptr, 10);
    ADD_FAILURE() << "HEARTH_REPAIRS_FIRST=" << at << ": the process ended with " << status;
    next = at + 1;
  }
  EXPECT_EQ(folder_.Read("wrong"), "");
  std::ifstream served(folder_.File("served"));
  uint64_t all = 0, times = 0;
  for (uint64_t one = 0; served >> one; ++times) all += one;
  EXPECT_GT(all, times * kRepairPoints / 2) << "of " << times << " folders";
  RecordProperty("served", absl::StrCat(all, " of ", times * kRepairPoints));
}

TEST_F(RepairDamage, ARepairThatIsKilledAtAnyStepIsMadeAgain) {
  damaged_.Renew();
  for (const auto& entry : fs::directory_iterator(damaged_.Work() + "/db")) {
    if (absl::StartsWith(entry.path().filename().string(), "MANIFEST-")) fs::remove(entry.path());
  }
  fs::remove_all(damaged_.Base());
  fs::rename(damaged_.Work(), damaged_.Base());
  const std::vector<std::string> steps = Steps();
  ASSERT_GT(steps.size(), 10u);
  for (const std::string& step : steps) {
    SCOPED_TRACE(step);
    damaged_.Renew();
    const int status = RunInChild([&] {
      RepairOptions options;
      options.on_progress = [&](const std::string& next) {
        if (next == step) std::_Exit(kKilled);
      };
      RepairDataDir(damaged_.Work(), options).status().IgnoreError();
    });
    ASSERT_EQ(WEXITSTATUS(status), kKilled);
    ASSERT_EQ(RunInChild([&] { RepairAgain(step); }), 0);
  }
  EXPECT_EQ(folder_.Read("wrong"), "");
}

}  // namespace
}  // namespace hearth
