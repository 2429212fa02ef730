// RopeTable: the cosines and sines of Gemma's rotations, by absolute position.
//
// An angle is position * inverse frequency, each rounded to float32 as transformers has it; powers,
// cosines and sines are computed in double precision by this file's own operations, so that they do
// not depend on the C library of a machine (what is called of it, frexp, ldexp, nearbyint and fma,
// is exact or rounded in one way).
//
// Thread safety: as const; Extend is not.
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
  // Those of a head. REQUIRES: Supports(rope).
  RopeTable(const RopeConfig& rope, int head_dim);

  // Whether powers and angles of them stay where they are right: all that a model has.
  static bool Supports(const RopeConfig& rope) {
    return rope.theta >= 1 && rope.theta <= 1e30 && rope.factor >= 1 && rope.factor <= 1e30;
  }

  // Positions [0, positions) are there afterwards. Earlier views end where there is more to
  // compute.
  void Extend(int64_t positions);

  const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }
  int64_t half() const { return static_cast<int64_t>(inverse_frequencies_.size()); }
  // Rows of positions from `begin` on. REQUIRES: Extend reached their end.
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
