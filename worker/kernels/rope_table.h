// RopeTable: cosines and sines of Gemma's rotary position embedding (RoPE) for each position.
//
// An angle is position * inverse frequency, each rounded to float32 as in the library transformers.
// This class computes powers, cosines and sines itself in double precision, so they do not depend
// on the machine's C library. The library functions that it calls (frexp, ldexp, nearbyint, fma)
// are exact or correctly rounded.
//
// Thread safety: const methods may be called from any thread; Extend needs exclusive access.
#ifndef HEARTH_WORKER_KERNELS_ROPE_TABLE_H_
#define HEARTH_WORKER_KERNELS_ROPE_TABLE_H_

#include <cstdint>
#include <vector>

#include "worker/kernels/base/rope_config.h"
#include "worker/kernels/base/rows.h"

namespace hearth {

class RopeTable {
 public:
  RopeTable() = default;
  // Makes a table for heads of `head_dim` columns. REQUIRES: Supports(rope).
  RopeTable(const RopeConfig& rope, int head_dim);

  // Returns whether the parameters of `rope` are in the range in which this class is accurate. The
  // parameters of all published models are.
  static bool Supports(const RopeConfig& rope) {
    return rope.theta >= 1 && rope.theta <= 1e30 && rope.factor >= 1 && rope.factor <= 1e30;
  }

  // Extends the table to the positions [0, positions). If the table grows, earlier views become
  // invalid.
  void Extend(int64_t positions);

  const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }
  int64_t half() const { return static_cast<int64_t>(inverse_frequencies_.size()); }
  // Returns the rows [count][half()] for the positions [begin, begin + count). REQUIRES:
  // Extend(begin + count) was called.
  ConstRows Cos(int64_t begin, int64_t count) const;
  ConstRows Sin(int64_t begin, int64_t count) const;

 private:
  float attention_factor_ = 1;
  std::vector<float> inverse_frequencies_;
  int64_t positions_ = 0;
  std::vector<float> cos_, sin_;  // [positions][half]
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_ROPE_TABLE_H_
