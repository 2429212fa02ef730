// The operations of a Gemma 3 layer: RMSNorm, rotary position embedding, feed-forward block,
// attention.
//
// Private to hearth_model, because it includes ATen. Thread safety: immutable; const methods may be
// called from any thread.
// The formulas follow Hugging Face's modeling_gemma3.py (transformers 5): norms in float32 with
// weight 1 + w, RoPE angles as float32 products, GELU with the tanh approximation.
#ifndef HEARTH_WORKER_MODEL_TORCH_LAYERS_H_
#define HEARTH_WORKER_MODEL_TORCH_LAYERS_H_

#include <ATen/ATen.h>

#include "worker/model/model_config.h"
#include "worker/model/torch/kv_cache_rep.h"
#include "worker/model/torch/linear.h"
#include "worker/model/weights.h"

namespace hearth {

struct Compute {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  at::TensorOptions options() const { return at::TensorOptions().dtype(dtype).device(device); }
};

class RmsNorm {
 public:
  RmsNorm() = default;
  RmsNorm(const TensorView& weight, double epsilon, const Compute& compute);
  // `scale`: 1 + w, possibly times another factor; float32, broadcast over x.
  RmsNorm(at::Tensor scale, double epsilon) : scale_(std::move(scale)), epsilon_(epsilon) {}

  // x [..., n] -> x / sqrt(mean(x^2) + epsilon) * scale, in the dtype of x.
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  at::Tensor scale_;
  double epsilon_ = 0;
};

// Returns 1 + w in float32.
at::Tensor NormScale(const TensorView& weight, const Compute& compute);

// Cosines and sines for the positions of one step, each [n, 1, head_dim / 2].
struct Rotation {
  at::Tensor cos, sin;
};
class Rope {
 public:
  Rope() = default;
  Rope(const RopeConfig& config, int head_dim, const Compute& compute);
  Rotation At(int begin, int tokens) const;

 private:
  at::Tensor inverse_frequencies_;  // [head_dim / 2] float32
  float attention_factor_ = 1;
  Compute compute_;
};
// Applies RoPE to x [n, heads, head_dim]; element i of a head is paired with element i + head_dim /
// 2.
at::Tensor Rotate(const at::Tensor& x, const Rotation& rotation);

class FeedForward {
 public:
  FeedForward() = default;
  FeedForward(const LayerTensors& tensors, const Compute& compute, int rows_hint);
  // x [n, hidden] -> down(gelu_tanh(gate x) * (up x))
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  Linear gate_up_, down_;
};

// Attention: grouped-query attention with QK-norm over a sequence's KV cache.
//
// Thread safety: immutable; one step at a time for each cache. The window W includes the current
// token: position p attends to keys (p - W, p] in a local layer and [0, p] in a global layer.
// Formulas: Gemma 3 report (arXiv 2503.19786) and Hugging Face's modeling_gemma3.py.

// Values of one step that all layers of one kind (local or global) use. The step has positions
// [begin, begin + tokens).
struct StepView {
  int begin = 0, tokens = 0;
  int keys_begin = 0;  // first key position that any row attends to
  Rotation rotation;
  at::Tensor mask;  // [tokens, keys]: 0 or -inf; undefined if every row attends to every key
};
StepView MakeStepView(int begin, int tokens, bool local, int window, const Rope& rope,
                      const Compute& compute);

class Attention {
 public:
  Attention() = default;
  Attention(const LayerTensors& tensors, const AttentionConfig& config, double rms_norm_eps,
            const Compute& compute, int rows_hint);
  // x [n, hidden] -> [n, hidden]; appends the keys and values of the step to `kv`.
  at::Tensor operator()(const at::Tensor& x, const StepView& step, LayerKv* layer,
                        KvCacheRep* kv) const;

 private:
  at::Tensor Attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                    const at::Tensor& mask) const;

  Linear qkv_, out_;
  RmsNorm qk_norm_;  // the scale for queries includes query_pre_attn_scalar^-0.5
  int heads_ = 0, kv_heads_ = 0, head_dim_ = 0;
  double softcap_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TORCH_LAYERS_H_
