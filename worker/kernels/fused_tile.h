// FusedTile: computes one k16 step (fused_dot.h) for 16 outputs at once. The bits are those of
// FusedDot, but most steps take a tenth of its time.
//
// Thread safety: const methods may be called from any thread. A FusedTile is a value.
#ifndef HEARTH_WORKER_KERNELS_FUSED_TILE_H_
#define HEARTH_WORKER_KERNELS_FUSED_TILE_H_

#include <cstdint>

#include "worker/kernels/fused_dot.h"

namespace hearth {

class FusedTile {
 public:
  static constexpr int kOutputs = 16;
  // 16 bfloat16 inputs of each output: weights[output][input].
  using Weights = uint16_t[kOutputs][kStepInputs];

  explicit FusedTile(const Weights& weights);

  // For each output i: sums[i] = FusedDot(weights[i], row, sums[i]).
  void AddTo(const uint16_t* row, float* sums) const;

 private:
  // Computes the step of one output with FusedDot.
  float OneOutput(int output, const uint16_t* row, float sum) const;

  // [input][output]: the weights, and 2 to the power of their exponents
  alignas(64) float weights_[kStepInputs][kOutputs];
  alignas(64) float powers_[kStepInputs][kOutputs];
  bool is_plain_;  // whether all weights are zero or have an exponent within the limits
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_FUSED_TILE_H_
