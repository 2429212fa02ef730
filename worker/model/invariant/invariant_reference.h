// InvariantReference: computes one row through one layer by the kernels' scalar references, to
// compare the result of each operation bit by bit.
//
// Thread safety: none. Weights and places must outlive it.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_REFERENCE_H_
#define HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/kernels/layer.h"

namespace hearth {

// Where a row is in its sequence, and its layer's keys and values.
struct ReferencePlace {
  int64_t position = 0;
  QkvToken token;
  std::vector<const std::byte*> blocks;  // of all splits that it sees
};

class InvariantReference {
 public:
  // `x` and `normed`: the row as the layer begins with it.
  InvariantReference(const LayerWeights& weights, const float* next_norm, ReferencePlace place,
                     std::vector<float> x, std::vector<float> normed);

  // Whether `row` has the bits of the next operation's result, in the order in which a layer
  // reports them. After the rotation it also checks the row's keys and values in their block.
  bool Matches(const float* row, int64_t columns);

  // Equal as bits, or both NaN: which one is left open.
  static bool SameBits(const float* a, const float* b, int64_t count);

 private:
  using Row = std::vector<float>;
  static Row ProductOf(const Row& x, const PackedWeights& weights);
  Row NormOf(const Row& x, const float* scale) const;
  void NormAndRotate();
  bool KeysAndValuesHold() const;
  Row Attention() const;
  Row GeluOfGateTimesUp() const;

  const LayerWeights weights_;
  const float* const next_norm_;
  const ReferencePlace place_;
  int operation_ = 0;
  Row x_, normed_;
  Row last_;  // result of the operation before
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_REFERENCE_H_
