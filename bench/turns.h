// Turns: two ways of one work, timed by turns in one run.
#ifndef HEARTH_BENCH_TURNS_H_
#define HEARTH_BENCH_TURNS_H_

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/functional/function_ref.h"

namespace hearth {

inline double Seconds(absl::FunctionRef<void()> work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Two ways of one work, by turns.
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

}  // namespace hearth

#endif  // HEARTH_BENCH_TURNS_H_
