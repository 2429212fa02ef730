#include "worker/model/torch/layers.h"

namespace hearth {

at::Tensor NormScale(const TensorView& weight, const Compute& compute) {
  return ToTensor(weight, at::kFloat, compute.device).add_(1.0);
}

RmsNorm::RmsNorm(const TensorView& weight, double epsilon, const Compute& compute)
    : scale_(NormScale(weight, compute)), epsilon_(epsilon) {}

at::Tensor RmsNorm::operator()(const at::Tensor& x) const {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor inverse = wide.square().mean(-1, /*keepdim=*/true).add_(epsilon_).rsqrt_();
  return (wide * inverse).mul_(scale_).to(x.scalar_type());
}

Rope::Rope(const RopeConfig& config, int head_dim, const Compute& compute) : compute_(compute) {
  const at::Tensor exponents =
      at::arange(0, head_dim, 2, at::TensorOptions().dtype(at::kFloat)).div_(head_dim);
  const at::Tensor base = at::full({}, config.theta, at::TensorOptions().dtype(at::kFloat));
  inverse_frequencies_ = at::pow(base, exponents).reciprocal_();
  if (config.linear_factor != 1.0) inverse_frequencies_.div_(config.linear_factor);
  inverse_frequencies_ = inverse_frequencies_.to(compute.device);
}

Rotation Rope::At(int begin, int tokens) const {
  const at::Tensor positions = at::arange(
      begin, begin + tokens, at::TensorOptions().dtype(at::kFloat).device(compute_.device));
  const at::Tensor angles = at::outer(positions, inverse_frequencies_).unsqueeze(1);
  return {angles.cos().to(compute_.dtype), angles.sin().to(compute_.dtype)};
}

at::Tensor Rotate(const at::Tensor& x, const Rotation& rotation) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  at::Tensor out = at::empty_like(x);
  out.narrow(-1, 0, half).copy_((first * rotation.cos).sub_(second * rotation.sin));
  out.narrow(-1, half, half).copy_((second * rotation.cos).add_(first * rotation.sin));
  return out;
}

FeedForward::FeedForward(const LayerTensors& tensors, const Compute& compute, int rows_hint)
    : gate_up_({tensors.gate, tensors.up}, compute.dtype, compute.device, rows_hint),
      down_({tensors.down}, compute.dtype, compute.device, rows_hint) {}

at::Tensor FeedForward::operator()(const at::Tensor& x) const {
  const at::Tensor both = gate_up_(x);
  const int64_t width = both.size(1) / 2;
  const at::Tensor gate = at::gelu(both.narrow(1, 0, width), "tanh");
  return down_(at::mul(gate, both.narrow(1, width, width)));
}

}  // namespace hearth
