#include "worker/model/torch/linear.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cassert>
#include <optional>

namespace hearth {
namespace {

using ReorderFn = at::Tensor(const at::Tensor&, std::optional<int64_t>);
using PointwiseFn = at::Tensor(const at::Tensor&, const at::Tensor&,
                               const std::optional<at::Tensor>&, c10::string_view,
                               c10::List<std::optional<at::Scalar>>,
                               std::optional<c10::string_view>);

// Returns an operator by name; libtorch exports these operators only through its dispatcher.
template <typename Fn>
const c10::TypedOperatorHandle<Fn>& Operator(const char* name) {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Fn>();
  return handle;
}

}  // namespace

at::ScalarType CheckpointType(ElementType type) {
  assert(!IsOfBlocks(type));
  return type == ElementType::kBFloat16  ? at::kBFloat16
         : type == ElementType::kFloat16 ? at::kHalf
                                         : at::kFloat;
}

at::Tensor ToTensor(const TensorView& view, at::ScalarType dtype, at::Device device) {
  // The const_cast is safe: the tensor is copied and never written to.
  const at::Tensor stored = at::from_blob(const_cast<std::byte*>(view.data.get()), view.shape,
                                          at::TensorOptions().dtype(CheckpointType(*view.type)));
  return stored.to(at::TensorOptions().dtype(dtype).device(device), /*non_blocking=*/false,
                   /*copy=*/true);
}

Linear::Linear(const std::vector<TensorView>& parts, at::ScalarType dtype, at::Device device,
               int rows_hint) {
  std::vector<at::Tensor> stacked;
  for (const TensorView& part : parts) stacked.push_back(ToTensor(part, dtype, device));
  weight_ = stacked.size() == 1 ? stacked[0] : at::cat(stacked, 0);
  if (!device.is_cpu() || !at::globalContext().userEnabledMkldnn() || dtype != at::kFloat) {
    return;
  }
  weight_ = Operator<ReorderFn>("mkldnn::_reorder_linear_weight").call(weight_, rows_hint);
  packed_ = true;
}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  if (!packed_) return at::linear(x, weight_);
  return Operator<PointwiseFn>("mkldnn::_linear_pointwise")
      .call(x, weight_, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), std::nullopt);
}

}  // namespace hearth
