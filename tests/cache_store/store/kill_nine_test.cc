// kill -9 during a mixed load: acknowledged restore points survive, and no partial restore point is
// visible.
//
// A child process publishes, fetches, evicts, demotes and scrubs in two stores, and prints which
// publishes were acknowledged by the store that has space for everything. The parent waits for a
// number of acknowledged publishes, then for a part of the time that a publish takes, and kills the
// child. A seed chooses the number and the part, so the machine's speed does not matter. The parent
// then opens the folders and checks them. The folders are used for several rounds, so that later
// rounds also recover the data of earlier rounds. HEARTH_KILLS=N sets the number of kills.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cache_store/disk/verify.h"
#include "tests/cache_store/store/kill_prompts.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

class Child {
 public:
  Child(const std::string& folder, uint64_t first_seed, const std::string& level) {
    int pipe_ends[2];
    if (pipe2(pipe_ends, O_CLOEXEC) != 0) return;
    out_ = pipe_ends[0];
    const std::string seed = absl::StrCat(first_seed);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(pipe_ends[1], STDOUT_FILENO);
      execl(HEARTH_KILL_CHILD, HEARTH_KILL_CHILD, folder.c_str(), seed.c_str(), level.c_str(),
            static_cast<char*>(nullptr));
      _exit(127);
    }
    close(pipe_ends[1]);
  }
  ~Child() { close(out_); }

  bool WaitForFirstLine() {
    char c;
    while (read(out_, &c, 1) == 1) {
      if (c == '\n') return true;
    }
    return false;
  }
  // Reads this many lines of the child's output, waits for the fraction `part` of the time that a
  // line took, then kills the child and reads the rest of the pipe.
  std::string RunAndKill(int lines, double part) {
    std::string said;
    char buffer[4096];
    const absl::Time start = absl::Now();
    for (char c; lines > 0 && read(out_, &c, 1) == 1; lines -= c == '\n' ? 1 : 0) said += c;
    const auto written = std::max<ptrdiff_t>(1, std::count(said.begin(), said.end(), '\n'));
    const absl::Time until = absl::Now() + (absl::Now() - start) * part / written;
    for (absl::Duration left; (left = until - absl::Now()) > absl::ZeroDuration();) {
      const timespec wait = absl::ToTimespec(left);
      pollfd end{out_, 0, 0};
      if (ppoll(&end, 1, &wait, nullptr) != 0) break;
    }
    kill(pid_, SIGKILL);
    for (ssize_t got; (got = read(out_, buffer, sizeof(buffer))) > 0;) {
      said.append(buffer, static_cast<size_t>(got));
    }
    waitpid(pid_, &status_, 0);
    return said;
  }
  bool was_killed() const { return WIFSIGNALED(status_) && WTERMSIG(status_) == SIGKILL; }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  int status_ = 0;
};

constexpr int kUsualKills = 20;
constexpr int kKillsOfAFolder = 20;
constexpr int kLinesMax = 12;

int Kills() {
  const char* text = std::getenv("HEARTH_KILLS");
  return text == nullptr ? kUsualKills : std::atoi(text);
}

class Killing {
 public:
  explicit Killing(std::mt19937_64* random) : random_(*random) {}

  void Round(int round) {
    Child child(folder_.path(), next_seed_, round % 4 == 3 ? "sync" : "disk");
    ASSERT_TRUE(child.WaitForFirstLine());
    const int lines = 1 + static_cast<int>(random_() % kLinesMax);
    const std::string said = child.RunAndKill(lines, static_cast<double>(random_() % 100) / 100);
    ASSERT_TRUE(child.was_killed());
    ASSERT_EQ(said.find("wrong"), std::string::npos) << said.substr(said.find("wrong"));
    uint64_t under_way = next_seed_;
    for (const absl::string_view line : absl::StrSplit(said, '\n')) {
      uint64_t seed = 0;
      // Ignore a partial last line: the child died inside a write, so the newline is missing.
      if (line.substr(0, 6) != "acked " || !absl::SimpleAtoi(line.substr(6), &seed)) continue;
      acked_.insert(seed);
      under_way = seed + 1;
    }
    // the publish that was interrupted may be stored or not, but never in part
    next_seed_ = under_way + 2;
    CheckAmple(under_way);
    CheckSmall(under_way);
  }
  // Checks all acknowledged restore points. After each round only a sample is checked, because
  // checking all of them each time would take quadratic time.
  void CheckAll() {
    sampled_ = false;
    CheckAmple(next_seed_);
    Open(false).reset();
    for (const bool ample : {true, false}) {
      const VerifyReport report =
          VerifyDataDir(KillOptions(folder_.path(), ample).data_dir).value();
      EXPECT_TRUE(report.ok()) << report.problems[0];
      EXPECT_EQ(report.unreferenced_objects, 0u);
    }
  }
  size_t acked() const { return acked_.size(); }
  uint64_t collected() const { return collected_; }
  uint64_t evicted() const { return evicted_; }

 private:
  std::unique_ptr<TieredStore> Open(bool ample) {
    auto store = TieredStore::Open(KillOptions(folder_.path(), ample)).value();
    const StoreStats stats = store->Stats();
    EXPECT_EQ(stats.counters.at("recovery_dropped_manifests"), 0u);
    EXPECT_EQ(stats.counters.at("recovery_lost_restore_points"), 0u);
    EXPECT_EQ(stats.counters.at("recovery_damage"), 0u);
    collected_ += stats.counters.at("recovery_collected_objects");
    return store;
  }

  void CheckAmple(uint64_t under_way) {
    const auto store = Open(true);
    for (const uint64_t seed : acked_) {
      if (sampled_ && seed + 20 < next_seed_ && random_() % 10 != 0) continue;
      const auto usable = KitFetch(store.get(), model_, KillPrompt(seed));
      ASSERT_TRUE(usable.ok()) << usable.status();
      ASSERT_EQ(*usable, KillBoundaries(seed).back()) << "seed " << seed << " was acknowledged";
    }
    const auto torn = KitFetch(store.get(), model_, KillPrompt(under_way));
    ASSERT_TRUE(torn.ok()) << "a torn publish is visible: " << torn.status();
    EXPECT_EQ(store->Stats().counters.at("quarantined_objects"), 0u);
  }

  // Checks the store that evicts: whichever restore points it has, their bytes must be exact.
  void CheckSmall(uint64_t newest) {
    const auto store = Open(false);
    for (uint64_t seed = newest - std::min<uint64_t>(newest, 30); seed <= newest + 30; ++seed) {
      const auto usable = KitFetch(store.get(), model_, KillPrompt(seed));
      ASSERT_TRUE(usable.ok()) << usable.status();
      if (seed < newest && *usable < KillBoundaries(seed).back()) ++evicted_;
    }
    EXPECT_EQ(store->Stats().counters.at("quarantined_objects"), 0u);
  }

  const TestFolder folder_;
  const Fingerprint model_ = KillModel();
  std::mt19937_64& random_;
  std::set<uint64_t> acked_;
  uint64_t next_seed_ = 0, collected_ = 0, evicted_ = 0;
  bool sampled_ = true;
};

TEST(KillNine, KilledStoreKeepsAcknowledgedPoints) {
  std::mt19937_64 random(20260101);
  size_t acked = 0;
  uint64_t collected = 0, evicted = 0;
  for (int round = 0; round < Kills() && !::testing::Test::HasFailure();) {
    Killing killing(&random);
    for (int i = 0; i < kKillsOfAFolder && round < Kills(); ++i, ++round) {
      SCOPED_TRACE(::testing::Message() << "round " << round);
      killing.Round(round);
      if (::testing::Test::HasFailure()) return;
    }
    killing.CheckAll();
    acked += killing.acked();
    collected += killing.collected();
    evicted += killing.evicted();
  }
  std::printf("%d kills: %zu publishes acknowledged, all there; %llu objects of torn ones gone\n",
              Kills(), acked, static_cast<unsigned long long>(collected));
  EXPECT_GT(acked, 20u);
  EXPECT_GT(collected, 0u) << "no kill ever landed inside a publish: the test tests nothing";
  EXPECT_GT(evicted, 0u) << "nothing was evicted: the test tests nothing";
}

}  // namespace
}  // namespace hearth
