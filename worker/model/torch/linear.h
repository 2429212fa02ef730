// Linear: a weight matrix W, prepared for products with activations: y = x W^T.
//
// Private to hearth_model, because it includes ATen. Thread safety: immutable; const methods may be
// called from any thread. On a CPU, float32 weights are reordered once into oneDNN's blocked
// layout; with the rows of a chunk, this makes the product two to three times faster
// (docs/benchmarks.md). On a GPU and for other dtypes the weights are not reordered. Equal rows
// give equal bits.
#ifndef HEARTH_WORKER_MODEL_TORCH_LINEAR_H_
#define HEARTH_WORKER_MODEL_TORCH_LINEAR_H_

#include <ATen/ATen.h>

#include <vector>

#include "worker/model/tensor_files.h"

namespace hearth {

// REQUIRES: `type` is not a block type.
at::ScalarType CheckpointType(ElementType type);

// Copies a checkpoint's tensor to `device`, converted to `dtype`.
at::Tensor ToTensor(const TensorView& view, at::ScalarType dtype, at::Device device);

class Linear {
 public:
  Linear() = default;
  // Stacks the rows of `parts`, each [out, in], into one matrix. `rows_hint`: number of activation
  // rows for which the layout is optimised.
  Linear(const std::vector<TensorView>& parts, at::ScalarType dtype, at::Device device,
         int rows_hint);

  // Returns the matrix in row-major order; undefined if it was reordered.
  at::Tensor plain_weight() const { return packed_ ? at::Tensor() : weight_; }

  // x [n, in] contiguous -> [n, out].
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor weight_;
  bool packed_ = false;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TORCH_LINEAR_H_
