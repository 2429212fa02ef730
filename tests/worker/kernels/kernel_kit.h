// Helpers of the kernel tests: run a test on all targets and integer kernels, and detect accesses
// out of bounds.
#ifndef HEARTH_TESTS_WORKER_KERNELS_KERNEL_KIT_H_
#define HEARTH_TESTS_WORKER_KERNELS_KERNEL_KIT_H_

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/sanitized.h"
#include "worker/kernels/base/phases.h"
#include "worker/kernels/integer_product.h"
#include "worker/kernels/targets.h"
#include "worker/model/thread_pool.h"

namespace hearth {

// Runs `body` on each target that this CPU supports, including kPlain. Then restores the best
// target.
template <typename Body>
void ForEachTarget(Body body) {
  for (const KernelTarget target : UsableTargets()) {
    ForceTarget(target);
    body(std::string(KernelTargetName(target)));
  }
  ForceTarget(UsableTargets().back());
}

// Runs `body` with each integer kernel that this CPU supports, and with the reference. Then
// restores the best kernel.
template <typename Body>
void ForEachIntegerKernel(Body body) {
  for (const IntegerKernel kernel : UsableIntegerKernels()) {
    ForceIntegerKernel(kernel);
    body(std::string(IntegerKernelName(kernel)));
  }
  ForceTarget(KernelTarget::kPlain);
  body("plain");
  ForceTarget(UsableTargets().back());
}

// Calls `add` with an empty list of loops, and runs the list.
template <typename Add>
void AddAndRun(ParallelFor parallel, Add add) {
  KernelPhases phases;
  add(&phases);
  phases.Run(parallel);
}

// Seeded random numbers of sizes that are typical in a model, including zeros of both signs.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed * 2 + 1) {}

  uint64_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return state_ >> 33;
  }
  // Returns a value in [-1, 1), sometimes +0 or -0.
  float Value() {
    const uint64_t draw = Next();
    if (draw % 61 == 0) return draw % 2 == 0 ? 0.0f : -0.0f;
    return static_cast<float>(Next() % 0x1000000) / 0x800000 - 1.0f;
  }

 private:
  uint64_t state_;
};

// A matrix with NaN before, between and after its rows.
class FencedRows {
 public:
  FencedRows(int64_t rows, int64_t columns, int64_t fence = 5)
      : rows_(rows),
        columns_(columns),
        stride_(columns + fence),
        all_(static_cast<size_t>((rows + 2) * stride_), std::numeric_limits<float>::quiet_NaN()) {}

  float* Row(int64_t row) { return all_.data() + (row + 1) * stride_; }
  const float* Row(int64_t row) const { return all_.data() + (row + 1) * stride_; }
  int64_t stride() const { return stride_; }
  void Fill(Numbers* numbers, float scale = 1) {
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t i = 0; i < columns_; ++i) Row(row)[i] = scale * numbers->Value();
    }
  }
  // Returns whether all bits outside the first `rows` rows are unchanged.
  bool FenceIntact(int64_t rows) const {
    const FencedRows clean(rows_, columns_, stride_ - columns_);
    for (size_t at = 0; at < all_.size(); ++at) {
      const int64_t row = static_cast<int64_t>(at) / stride_ - 1;
      const int64_t column = static_cast<int64_t>(at) % stride_;
      const bool is_data = row >= 0 && row < rows && column < columns_;
      if (!is_data && std::memcmp(&all_[at], &clean.all_[at], sizeof(float)) != 0) return false;
    }
    return true;
  }

 private:
  int64_t rows_, columns_, stride_;
  std::vector<float> all_;
};

// Describes the first element whose bits differ; empty if there is none. All NaNs are treated as
// equal, because the compiler decides which NaN an operation returns.
inline std::string FirstDifference(const float* got, const float* want, int64_t count) {
  if (std::memcmp(got, want, static_cast<size_t>(count) * sizeof(float)) == 0) return "";
  for (int64_t i = 0; i < count; ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(float)) == 0) continue;
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    char text[100];
    std::snprintf(text, sizeof text, "element %ld: %a, wanted %a", static_cast<long>(i),
                  static_cast<double>(got[i]), static_cast<double>(want[i]));
    return text;
  }
  return "";
}

// Returns row counts around the limits of tiles, blocks and batches.
inline std::vector<int64_t> RowCounts() {
  if (kIsSanitized) return {1, 2, 3, 5, 8, 13, 17, 33};
  std::vector<int64_t> counts;
  for (int64_t rows = 1; rows <= 17; ++rows) counts.push_back(rows);
  for (const int64_t middle : {32, 64, 128, 256}) {
    for (int64_t rows = middle - 1; rows <= middle + 1; ++rows) counts.push_back(rows);
  }
  return counts;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_WORKER_KERNELS_KERNEL_KIT_H_
