// Attention: grouped-query attention with QK-norm over a sequence's KV cache.
//
// Private to hearth_model: it includes ATen. Thread safety: immutable; one step at a time per
// cache. W counts the current token: position p sees keys (p - W, p] in a local layer, [0, p] in a
// global one. Formulas: Gemma 3 report (arXiv 2503.19786) and Hugging Face's modeling_gemma3.py.
#ifndef HEARTH_WORKER_MODEL_TORCH_ATTENTION_H_
#define HEARTH_WORKER_MODEL_TORCH_ATTENTION_H_

#include <ATen/ATen.h>

#include "worker/model/torch/kv_cache_rep.h"
#include "worker/model/torch/layers.h"
#include "worker/model/torch/linear.h"

namespace hearth {

// The values that all layers of one kind share in one step: positions [begin, begin + tokens).
struct StepView {
  int begin = 0, tokens = 0;
  int keys_begin = 0;  // first key position any row sees
  Rotation rotation;
  at::Tensor mask;  // [tokens, keys] 0 or -inf, undefined when every key is seen
};
StepView MakeStepView(int begin, int tokens, bool local, int window, const Rope& rope,
                      const Compute& compute);

class Attention {
 public:
  Attention() = default;
  Attention(const LayerTensors& tensors, const AttentionConfig& config, double rms_norm_eps,
            const Compute& compute, int rows_hint);
  // x [n, hidden] -> [n, hidden]; appends the step's keys and values to `kv`.
  at::Tensor operator()(const at::Tensor& x, const StepView& step, LayerKv* layer,
                        KvCacheRep* kv) const;

 private:
  at::Tensor Attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                    const at::Tensor& mask) const;

  Linear qkv_, out_;
  RmsNorm qk_norm_;  // queries' rows carry the scale query_pre_attn_scalar^-0.5 too
  int heads_ = 0, kv_heads_ = 0, head_dim_ = 0;
  double softcap_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TORCH_ATTENTION_H_
