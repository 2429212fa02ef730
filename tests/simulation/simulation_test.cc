// Seeded simulations of a store and three workers: world.h.
//
// HEARTH_SIM_SEED=N runs one seed and says what happened; HEARTH_SIM_SEEDS=N runs so many, from
// HEARTH_SIM_FIRST_SEED on, or for HEARTH_SIM_SECONDS.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/time/clock.h"
#include "tests/simulation/world.h"

namespace hearth {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 4;
#else
constexpr uint64_t kSeeds = 30;
#endif

uint64_t SimEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

World::Figures RunSeed(uint64_t seed, bool tells) {
  World world(seed, SimEnvironment("HEARTH_SIM_LINES", 60));
  world.Run();
  const Timeline& time = world.time();
  if (time.failed()) {
    ADD_FAILURE() << time.violation() << "\n"
                  << "what happened last in seed " << seed << ":\n"
                  << time.History() << "again: HEARTH_SIM_SEED=" << seed
                  << " build/tests/hearth_simulation_test";
  }
  const World::Figures& figures = world.figures();
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

TEST(Simulation, NoInvariantIsViolated) {
  const uint64_t one = SimEnvironment("HEARTH_SIM_SEED", 0);
  const uint64_t first = one > 0 ? one : SimEnvironment("HEARTH_SIM_FIRST_SEED", 1);
  const uint64_t seeds = one > 0 ? 1 : SimEnvironment("HEARTH_SIM_SEEDS", kSeeds);
  const uint64_t seconds = SimEnvironment("HEARTH_SIM_SECONDS", 0);
  const bool tells = std::getenv("HEARTH_SIM_TELLS") != nullptr || one > 0;
  const absl::Time end = absl::Now() + absl::Seconds(seconds);
  World::Figures all;
  for (uint64_t i = 0; seconds > 0 ? absl::Now() < end : i < seeds; ++i) {
    const World::Figures figures = RunSeed(first + i, tells);
    all.restored += figures.restored;
    all.promises += figures.promises;
    if (HasFailure()) return;
  }
  EXPECT_GT(all.promises, 0u) << "nothing was promised: the test tests nothing";
  EXPECT_GT(all.restored, 0u) << "nothing was restored: the test tests nothing";
}

}  // namespace
}  // namespace hearth
