// Simulations of a store and three workers (world.h). All random choices come from a seed.
//
// HEARTH_SIM_SEED=N runs one seed. HEARTH_SIM_SEEDS=N runs N seeds, starting with
// HEARTH_SIM_FIRST_SEED. HEARTH_SIM_LINES=N prints the last N lines of each history,
// HEARTH_SIM_TELLS=1 prints a line per seed.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "tests/simulation/world.h"
#include "tests/support/sanitized.h"

namespace hearth {
namespace {

// Seeds that once found a fault; each comment describes the fault. They run first. A change of the
// simulation changes what a seed does, so each fault also has a direct test.
constexpr uint64_t kOnceFailed[] = {
    15,  // quarantined entries were served again after a crash (store_quarantine_test.cc)
    // quarantined entries were served again while the index loaded (store_quarantine_test.cc)
    14944717184590,
    // The expiry of a restore point in RAM differed from the expiry on disk (store_ttl_test.cc).
    17945329091979,
    // A start on a full disk used the reserved space and did not reserve it again
    // (full_disk_test.cc).
    18335161768157,
    30787018729884,  // a full disk refused a quarantine, which the Ledger did not record
    // The unsynced end of a log, which a crash had removed, was reported as damage
    // (store_disk_test.cc).
    6520183119042,
    // a log that a failed write had truncated was counted as damage (failing_disk_test.cc)
    7427386498791,
};
constexpr uint64_t kSeeds = kIsSanitized ? 1 : 20;

constexpr uint64_t kSameEveryTime = 16;

uint64_t SimEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// The history of the running simulation, so that it can be printed if an assertion in a library
// aborts the process.
std::atomic<const Timeline*> g_running{nullptr};

void PrintHistoryAndAbort(int signal) {
  if (const Timeline* time = g_running.exchange(nullptr)) {
    std::fprintf(stderr, "what happened last:\n%s", time->History().c_str());
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

World::Figures RunSeed(uint64_t seed, bool tells) {
  World world(seed, SimEnvironment("HEARTH_SIM_LINES", 60));
  const Timeline& time = world.time();
  g_running = &time;
  std::signal(SIGABRT, PrintHistoryAndAbort);
  world.Run();
  g_running = nullptr;
  if (time.failed()) {
    ADD_FAILURE() << time.violation() << "\n"
                  << "what happened last in seed " << seed << ":\n"
                  << time.History() << "again: HEARTH_SIM_SEED=" << seed
                  << " build/tests/hearth_simulation_test";
  }
  const World::Figures& figures = world.figures();
  if (!time.failed() && std::getenv("HEARTH_SIM_LINES") != nullptr) {
    std::printf("%s", time.History().c_str());
  }
  if (tells) {
    std::printf(
        "seed %llu: %llu lines, digest %016llx; %llu requests, %llu restored, %llu promises, "
        "%llu deaths, %llu crashes, %llu faults\n",
        static_cast<unsigned long long>(seed), static_cast<unsigned long long>(time.lines()),
        static_cast<unsigned long long>(time.digest()),
        static_cast<unsigned long long>(figures.requests),
        static_cast<unsigned long long>(figures.restored),
        static_cast<unsigned long long>(figures.promises),
        static_cast<unsigned long long>(figures.deaths),
        static_cast<unsigned long long>(figures.crashes),
        static_cast<unsigned long long>(figures.faults));
    std::fflush(stdout);
  }
  return figures;
}

TEST(Simulation, InvariantsHoldForAllSeeds) {
  const uint64_t one = SimEnvironment("HEARTH_SIM_SEED", 0);
  const uint64_t first = SimEnvironment("HEARTH_SIM_FIRST_SEED", 1);
  std::vector<uint64_t> seeds;
  // Under the sanitizers skip these seeds: they need at least ten seconds each, and sanitizers find
  // nothing more in them.
  if (!kIsSanitized) seeds.assign(std::begin(kOnceFailed), std::end(kOnceFailed));
  for (uint64_t i = 0; i < SimEnvironment("HEARTH_SIM_SEEDS", kSeeds); ++i) {
    seeds.push_back(first + i);
  }
  if (one > 0) seeds = {one};
  const bool tells = std::getenv("HEARTH_SIM_TELLS") != nullptr || one > 0;
  World::Figures all;
  for (const uint64_t seed : seeds) {
    const World::Figures figures = RunSeed(seed, tells);
    all.restored += figures.restored;
    all.promises += figures.promises;
    if (HasFailure()) return;
  }
  EXPECT_GT(all.promises, 0u) << "nothing was promised: the test tests nothing";
  EXPECT_GT(all.restored, 0u) << "nothing was restored: the test tests nothing";
}

// Two runs of a seed must give the same history. Only RocksDB's own threads may differ, on a
// failing disk; this seed has no disk faults.
TEST(Simulation, SameSeedGivesSameHistory) {
  if (kIsSanitized) GTEST_SKIP() << "nothing for a sanitizer that other seeds lack";
  uint64_t digests[2];
  for (uint64_t& digest : digests) {
    World world(kSameEveryTime, 0);
    world.Run();
    digest = world.time().digest();
  }
  EXPECT_EQ(digests[0], digests[1]);
}

}  // namespace
}  // namespace hearth
