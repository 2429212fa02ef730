// Linear: a weight matrix prepared for products with activations, y = x W^T.
//
// Private to hearth_model: it includes ATen. Thread safety: immutable, const use from any thread.
// On a CPU the weights are reordered once into oneDNN's blocked layout, which is two to three times
// faster than the plain product at a chunk's number of rows (docs/benchmarks.md). On a GPU, and for
// dtypes that oneDNN does not support, they are not reordered. The same rows give the same bits.
#ifndef HEARTH_WORKER_MODEL_TORCH_LINEAR_H_
#define HEARTH_WORKER_MODEL_TORCH_LINEAR_H_

#include <ATen/ATen.h>

#include <vector>

#include "worker/model/tensor_files.h"

namespace hearth {

// REQUIRES: not a block type.
at::ScalarType CheckpointType(ElementType type);

// Copies a checkpoint's tensor to the device, as `dtype`.
at::Tensor ToTensor(const TensorView& view, at::ScalarType dtype, at::Device device);

class Linear {
 public:
  Linear() = default;
  // Stacks the rows of `parts`, each [out, in], for one product instead of several. `rows_hint`:
  // the number of activation rows to optimise for.
  Linear(const std::vector<TensorView>& parts, at::ScalarType dtype, at::Device device,
         int rows_hint);

  // Returns the matrix in row order; undefined if it was reordered.
  at::Tensor plain_weight() const { return packed_ ? at::Tensor() : weight_; }

  // x [n, in] contiguous -> [n, out].
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor weight_;
  bool packed_ = false;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TORCH_LINEAR_H_
