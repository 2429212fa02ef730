// kill -9 in the middle of publishing: what was acknowledged is there, nothing torn is.
//
// A child publishes into a folder and prints what was acknowledged; the parent kills it after a
// seeded number of milliseconds of publishing, opens the folder, and checks. The folder is kept
// from round to round, so later rounds also recover from earlier ones' remains.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <set>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cache_store/verify.h"
#include "tests/cache_store/kill_prompts.h"

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
  // Reads what the child says until `until`, then kills it and drains the pipe.
  std::string RunAndKill(absl::Time until) {
    std::string said;
    char buffer[4096];
    while (true) {
      const int64_t left_ms = absl::ToInt64Milliseconds(until - absl::Now());
      pollfd wait{out_, POLLIN, 0};
      if (left_ms <= 0 || poll(&wait, 1, static_cast<int>(left_ms)) <= 0) break;
      const ssize_t got = read(out_, buffer, sizeof(buffer));
      if (got <= 0) break;
      said.append(buffer, static_cast<size_t>(got));
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

TEST(KillNine, TwentyTimesAtRandomMomentsLosesNothingAcknowledged) {
  const KitFolder folder;
  std::mt19937_64 random(20260101);
  std::set<uint64_t> acked;
  uint64_t next_seed = 0, collected = 0;
  const Fingerprint model = KillModel();
  for (int round = 0; round < 20; ++round) {
    Child child(folder.path(), next_seed, round % 4 == 3 ? "sync" : "disk");
    ASSERT_TRUE(child.WaitForFirstLine());
    const std::string said = child.RunAndKill(absl::Now() + absl::Microseconds(random() % 120000));
    ASSERT_TRUE(child.was_killed());
    uint64_t seen = next_seed;
    for (const absl::string_view line : absl::StrSplit(said, '\n')) {
      uint64_t seed = 0;
      // The pipe may end inside a line only if the child died inside a write: then no newline.
      if (line.substr(0, 6) != "acked " || !absl::SimpleAtoi(line.substr(6), &seed)) continue;
      acked.insert(seed);
      seen = seed + 1;
    }
    next_seed = seen + 2;  // the one under way may be there or not, but never in part

    StoreOptions options;
    options.data_dir = folder.path();
    options.host_bytes = 8 << 20;
    options.disk_bytes = uint64_t{8} << 30;
    const absl::Time start = absl::Now();
    auto store = TieredStore::Open(options).value();
    EXPECT_LT(absl::Now() - start, absl::Seconds(2));
    const StoreStats stats = store->Stats();
    EXPECT_EQ(stats.counters.at("recovery_dropped_manifests"), 0u);
    collected += stats.counters.at("recovery_collected_objects");
    for (const uint64_t seed : acked) {
      // Older ones are sampled: reading all of them every round is quadratic.
      if (seed + 40 < next_seed && random() % 10 != 0 && round != 19) continue;
      const auto usable = KitFetch(store.get(), model, KillPrompt(seed));
      ASSERT_TRUE(usable.ok()) << usable.status();
      ASSERT_EQ(*usable, 192u) << "seed " << seed << " was acknowledged";
    }
    const auto torn = KitFetch(store.get(), model, KillPrompt(seen));
    ASSERT_TRUE(torn.ok()) << "a torn publish is visible: " << torn.status();
    store.reset();
  }
  const VerifyReport report = VerifyDataDir(folder.path()).value();
  EXPECT_TRUE(report.ok()) << report.problems[0];
  EXPECT_EQ(report.unreferenced_objects, 0u);
  EXPECT_GT(acked.size(), 20u);
  EXPECT_GT(collected, 0u) << "no kill ever landed inside a publish: the test tests nothing";
}

}  // namespace
}  // namespace hearth
