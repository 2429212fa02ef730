// Turns: measures two implementations of the same work alternately in one run, so that other load
// affects both.
#ifndef HEARTH_BENCH_TURNS_H_
#define HEARTH_BENCH_TURNS_H_

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace hearth {

inline double Seconds(absl::FunctionRef<void()> work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Returns the processor time that all threads of the process have used.
inline double ProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Ends the program on an error, because a measurement of failed work has no meaning.
inline void RequireOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Runs two implementations alternately and measures their times.
struct Turns {
  Turns(int turns, absl::FunctionRef<void()> our_work, absl::FunctionRef<void()> their_work) {
    std::vector<double> our_times, their_times, ratios;
    for (int turn = 0; turn < turns; ++turn) {
      our_times.push_back(Seconds(our_work));
      their_times.push_back(Seconds(their_work));
      ratios.push_back(their_times.back() / our_times.back());
    }
    ours = Median(our_times);
    theirs = Median(their_times);
    ratio = Median(ratios);
  }
  double ours, theirs, ratio;
};

// Like Turns, but also measures processor time. Results are milliseconds per work; each turn does
// `count` works.
struct CostTurns {
  CostTurns(int turns, double count, absl::FunctionRef<void()> our_work,
            absl::FunctionRef<void()> their_work) {
    std::vector<double> wall[2], processor[2], wall_ratios, processor_ratios;
    for (int turn = 0; turn < turns; ++turn) {
      for (const int side : {0, 1}) {
        const double before = ProcessorSeconds();
        wall[side].push_back(Seconds(side == 0 ? our_work : their_work) * 1e3 / count);
        processor[side].push_back((ProcessorSeconds() - before) * 1e3 / count);
      }
      wall_ratios.push_back(wall[1].back() / wall[0].back());
      processor_ratios.push_back(processor[1].back() / processor[0].back());
    }
    our_wall = Median(wall[0]), our_processor = Median(processor[0]);
    their_wall = Median(wall[1]), their_processor = Median(processor[1]);
    wall_ratio = Median(wall_ratios), processor_ratio = Median(processor_ratios);
  }
  double our_wall, our_processor, their_wall, their_processor, wall_ratio, processor_ratio;
};

}  // namespace hearth

#endif  // HEARTH_BENCH_TURNS_H_
