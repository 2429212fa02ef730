#include "worker/model/torch/layers.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

Rope::Rope(const RopeConfig& config, int head_dim, const Compute& compute)
    : attention_factor_(config.attention_factor), compute_(compute) {
  const at::Tensor exponents =
      at::arange(0, head_dim, 2, at::TensorOptions().dtype(at::kFloat)).div_(head_dim);
  const at::Tensor base = at::full({}, config.theta, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor powers = at::pow(base, exponents);
  auto* values = powers.data_ptr<float>();
  for (int i = 0; i < head_dim / 2; ++i) values[i] = InverseFrequency(config, i, values[i]);
  inverse_frequencies_ = powers.to(compute.device);
}

Rotation Rope::At(int begin, int tokens) const {
  const at::Tensor positions = at::arange(
      begin, begin + tokens, at::TensorOptions().dtype(at::kFloat).device(compute_.device));
  const at::Tensor angles = at::outer(positions, inverse_frequencies_).unsqueeze(1);
  return {angles.cos().mul_(attention_factor_).to(compute_.dtype),
          angles.sin().mul_(attention_factor_).to(compute_.dtype)};
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

StepView MakeStepView(int begin, int tokens, bool local, int window, const Rope& rope,
                      const Compute& compute) {
  StepView step;
  step.begin = begin;
  step.tokens = tokens;
  step.keys_begin = local ? std::max(0, begin - (window - 1)) : 0;
  step.rotation = rope.At(begin, tokens);
  // for one token, the stored keys are exactly the keys of its window
  if (tokens == 1) return step;
  const auto options = at::TensorOptions().dtype(at::kInt).device(compute.device);
  const at::Tensor queries = at::arange(begin, begin + tokens, options).unsqueeze(1);
  const at::Tensor keys = at::arange(step.keys_begin, begin + tokens, options).unsqueeze(0);
  at::Tensor hidden = keys > queries;
  if (local) hidden = hidden.logical_or(keys <= queries - window);
  step.mask =
      at::zeros(hidden.sizes(), at::TensorOptions().dtype(at::kFloat).device(compute.device))
          .masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  return step;
}

Attention::Attention(const LayerTensors& tensors, const AttentionConfig& config,
                     double rms_norm_eps, const Compute& compute, int rows_hint)
    : qkv_({tensors.q, tensors.k, tensors.v}, compute.dtype, compute.device, rows_hint),
      out_({tensors.o}, compute.dtype, compute.device, rows_hint),
      heads_(config.num_heads),
      kv_heads_(config.num_kv_heads),
      head_dim_(config.head_dim),
      softcap_(config.logit_softcap) {
  const double scale = 1.0 / std::sqrt(config.query_pre_attn_scalar);
  const at::Tensor query_scale = NormScale(tensors.q_norm, compute).mul_(scale);
  qk_norm_ = RmsNorm(at::cat({query_scale.expand({heads_, head_dim_}),
                              NormScale(tensors.k_norm, compute).expand({kv_heads_, head_dim_})}),
                     rms_norm_eps);
}

at::Tensor Attention::operator()(const at::Tensor& x, const StepView& step, LayerKv* layer,
                                 KvCacheRep* kv) const {
  const int n = step.tokens, qk_heads = heads_ + kv_heads_;
  const at::Tensor qkv = qkv_(x).view({n, qk_heads + kv_heads_, head_dim_});
  const at::Tensor qk = Rotate(qk_norm_(qkv.narrow(1, 0, qk_heads)), step.rotation);
  kv->MakeRoom(layer, n);
  const int end = step.begin + n;
  kv->Rows(layer->keys, *layer, step.begin, end)
      .copy_(qk.narrow(1, heads_, kv_heads_).transpose(0, 1));
  kv->Rows(layer->values, *layer, step.begin, end)
      .copy_(qkv.narrow(1, qk_heads, kv_heads_).transpose(0, 1));
  const at::Tensor attended =
      Attend(qk.narrow(1, 0, heads_), kv->Rows(layer->keys, *layer, step.keys_begin, end),
             kv->Rows(layer->values, *layer, step.keys_begin, end), step.mask);
  return out_(attended);
}

at::Tensor Attention::Attend(const at::Tensor& queries, const at::Tensor& keys,
                             const at::Tensor& values, const at::Tensor& mask) const {
  const int64_t n = queries.size(0), groups = heads_ / kv_heads_, count = keys.size(1);
  // The query heads that share a KV head are stacked as rows of one matrix product.
  const at::Tensor rows = queries.view({n, kv_heads_, groups, head_dim_})
                              .permute({1, 2, 0, 3})
                              .reshape({kv_heads_, groups * n, head_dim_});
  at::Tensor scores = at::bmm(rows, keys.transpose(1, 2)).to(at::kFloat);
  if (softcap_ > 0) scores = scores.div_(softcap_).tanh_().mul_(softcap_);
  if (mask.defined()) scores.view({kv_heads_, groups, n, count}).add_(mask);
  const at::Tensor weights = at::softmax(scores, -1).to(values.scalar_type());
  return at::bmm(weights, values)
      .view({kv_heads_, groups, n, head_dim_})
      .permute({2, 0, 1, 3})
      .reshape({n, int64_t{heads_} * head_dim_});
}

}  // namespace hearth
