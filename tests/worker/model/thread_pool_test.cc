#include "worker/model/thread_pool.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "tests/worker/kernels/kernel_kit.h"

namespace hearth {
namespace {

using Phase = ThreadPool::Phase;

TEST(ThreadPool, RunsEachTaskOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const int64_t tasks : {0, 1, 2, 7, 100}) {
      std::vector<int> runs(static_cast<size_t>(tasks));
      pool.Run(tasks, [&](int64_t task, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, threads);
        ++runs[static_cast<size_t>(task)];
      });
      EXPECT_EQ(runs, std::vector<int>(static_cast<size_t>(tasks), 1)) << threads;
    }
  }
}

// Each loop sums the results of the previous loop, which are in memory without any lock. Some loops
// are empty or have one task, and one list is longer than kPhaseSlots.
TEST(ThreadPool, LoopReadsPreviousLoopResults) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    Numbers numbers(static_cast<uint64_t>(threads));
    for (int round = 0; round < 20; ++round) {
      const size_t count = round == 0 ? 600 : 1 + numbers.Next() % 12;
      std::vector<std::vector<int64_t>> values(count + 1, std::vector<int64_t>{1});
      std::vector<std::unique_ptr<std::function<void(int64_t, int)>>> bodies;
      std::vector<Phase> phases;
      int64_t want = 1;
      for (size_t i = 1; i <= count; ++i) {
        const int64_t tasks = 1 + static_cast<int64_t>(numbers.Next() % 9);
        values[i].resize(static_cast<size_t>(tasks));
        bodies.push_back(
            std::make_unique<std::function<void(int64_t, int)>>([&values, i](int64_t task, int) {
              const std::vector<int64_t>& before = values[i - 1];
              values[i][static_cast<size_t>(task)] =
                  std::accumulate(before.begin(), before.end(), int64_t{0}) % 1000003;
            }));
        if (numbers.Next() % 8 == 0) phases.push_back({0, *bodies.back()});
        phases.push_back({tasks, *bodies.back()});
        const int64_t summed = i == 1 ? 1 : static_cast<int64_t>(values[i - 1].size()) * want;
        want = summed % 1000003;
      }
      pool.RunPhases(phases);
      for (const int64_t value : values[count]) ASSERT_EQ(value, want) << threads;
    }
  }
}

// Two threads run short lists of short tasks, so that pool threads begin late, or are still in the
// previous list, at every possible moment.
TEST(ThreadPool, ConcurrentCallsRunOneByOne) {
  ThreadPool pool(4);
  std::atomic<int64_t> all{0};
  const auto run = [&] {
    for (int round = 0; round < 2000; ++round) {
      int64_t sums[3] = {};
      const auto add = [&](int64_t task, int) { sums[task] += task + 1; };
      const auto move = [&](int64_t task, int) { all += sums[task]; };
      pool.RunPhases({{3, add}, {1, move}, {3, move}});
    }
  };
  std::thread other(run);
  run();
  other.join();
  EXPECT_EQ(all, 2 * 2000 * 7);
}

// A thread that is blocked in a task does not prevent other threads from running the remaining
// tasks.
TEST(ThreadPool, BusyThreadDoesNotBlockOthers) {
  ThreadPool pool(2);
  std::atomic<int> others{0};
  pool.Run(50, [&](int64_t task, int) {
    if (task == 0) {
      while (others < 49) std::this_thread::yield();
    } else {
      ++others;
    }
  });
  EXPECT_EQ(others, 49);
}

}  // namespace
}  // namespace hearth
