// LatencyHistogram: counts durations in buckets with fixed bounds from 10 microseconds to 10
// seconds. Thread safe (relaxed atomics): a snapshot may contain only part of a concurrent
// observation.
#ifndef HEARTH_CACHE_STORE_BASE_LATENCY_H_
#define HEARTH_CACHE_STORE_BASE_LATENCY_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace hearth {

inline constexpr std::array<double, 19> kLatencyBoundsS = {
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,
    0.025,   0.05,     0.1,     0.25,   0.5,     1,      2.5,   5,      10};

struct LatencyCounts {
  // counts[i]: number of durations in (bound[i-1], bound[i]]; the last element counts durations
  // above the last bound.
  std::array<uint64_t, kLatencyBoundsS.size() + 1> counts{};
  double sum_s = 0;
  uint64_t count() const {
    uint64_t sum = 0;
    for (const uint64_t part : counts) sum += part;
    return sum;
  }
};

class LatencyHistogram {
 public:
  void Observe(std::chrono::nanoseconds took) {
    const double seconds = std::chrono::duration<double>(took).count();
    const auto bound = std::lower_bound(kLatencyBoundsS.begin(), kLatencyBoundsS.end(), seconds);
    const auto bucket = static_cast<size_t>(bound - kLatencyBoundsS.begin());
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_ns_.fetch_add(static_cast<uint64_t>(took.count()), std::memory_order_relaxed);
  }
  LatencyCounts Read() const {
    LatencyCounts read;
    for (size_t i = 0; i < counts_.size(); ++i) {
      read.counts[i] = counts_[i].load(std::memory_order_relaxed);
    }
    read.sum_s = static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) / 1e9;
    return read;
  }

 private:
  std::array<std::atomic<uint64_t>, kLatencyBoundsS.size() + 1> counts_{};
  std::atomic<uint64_t> sum_ns_{0};
};

class Stopwatch {
 public:
  std::chrono::nanoseconds Elapsed() const { return std::chrono::steady_clock::now() - start_; }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_LATENCY_H_
