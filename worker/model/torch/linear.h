// Linear: a weight matrix made ready for products with activations, y = x W^T.
//
// Private to hearth_model: it includes ATen. Thread safety: immutable, const use from any thread.
// On a CPU the weights are reordered once into oneDNN's blocked layout, which runs two to three
// times faster than the plain product at a chunk's number of rows (docs/benchmarks.md); elsewhere,
// and where oneDNN lacks the dtype, they stay as they are. The same rows give the same bits.
#ifndef HEARTH_WORKER_MODEL_TORCH_LINEAR_H_
#define HEARTH_WORKER_MODEL_TORCH_LINEAR_H_

#include <ATen/ATen.h>

#include <vector>

#include "worker/model/tensor_files.h"

namespace hearth {

// REQUIRES: not of blocks.
at::ScalarType CheckpointType(ElementType type);

// Copies a checkpoint's tensor to the device, in `dtype`.
at::Tensor ToTensor(const TensorView& view, at::ScalarType dtype, at::Device device);

class Linear {
 public:
  Linear() = default;
  // Stacks the rows of `parts`, each [out, in]: one product instead of several. `rows_hint` is the
  // number of activation rows to be fast at.
  Linear(const std::vector<TensorView>& parts, at::ScalarType dtype, at::Device device,
         int rows_hint);

  // The matrix as it was given, in row order; undefined where it was reordered.
  at::Tensor plain_weight() const { return packed_ ? at::Tensor() : weight_; }

  // x [n, in] contiguous -> [n, out].
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor weight_;
  bool packed_ = false;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TORCH_LINEAR_H_
