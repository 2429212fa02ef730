// The forward pass, top to bottom: loops in a list, which then runs as one sequence on the threads.
#include "worker/model/invariant/invariant_gemma.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "worker/kernels/float_mode.h"
#include "worker/kernels/row_kernels.h"
#include "worker/model/invariant/invariant_gemma_rep.h"

namespace hearth {

// Nothing that the list is given moves or grows from here on.
void InvariantGemma::Rep::BeginStep(absl::Span<const Part> parts) {
  step.Begin(parts, {config.hidden_size, layers[0].qkv.outputs(), layers[0].out.inputs(),
                     layers[0].down.inputs()});
  local_rope.Extend(step.end());
  global_rope.Extend(step.end());
}

void InvariantGemma::Rep::AddEmbedding(const std::vector<float>& first_norm, KernelPhases* list) {
  const int64_t hidden = config.hidden_size;
  const float scale = static_cast<float>(std::sqrt(static_cast<double>(hidden)));
  list->AddRows(step.rows(), [this, &first_norm, hidden, scale](int64_t row) {
    const FloatMode mode;
    float* x = step.shared().x.Row(row);
    WidenRow(embedding, step.token(row), hidden, x);
    for (int64_t i = 0; i < hidden; ++i) x[i] = x[i] * scale;
    RmsNorm({x, 1, hidden}, hidden, first_norm.data(), epsilon(),
            {step.shared().normed.Row(row), 1, hidden});
  });
}

LayerWeights InvariantGemma::Rep::WeightsOf(const InvariantLayer& layer) const {
  LayerWeights weights;
  weights.qkv = &layer.qkv;
  weights.out = &layer.out;
  weights.gate = &layer.gate;
  weights.up = &layer.up;
  weights.down = &layer.down;
  weights.post_attention_norm = layer.post_attention_norm.data();
  weights.pre_feedforward_norm = layer.pre_feedforward_norm.data();
  weights.post_feedforward_norm = layer.post_feedforward_norm.data();
  const AttentionConfig& attention = config.attention;
  weights.heads = {attention.num_heads, attention.num_kv_heads, attention.head_dim,
                   layer.q_norm.data(), layer.k_norm.data(),    epsilon()};
  weights.attend.heads = attention.num_heads;
  weights.attend.kv_heads = attention.num_kv_heads;
  weights.attend.head_dim = attention.head_dim;
  weights.attend.split = chunk;
  weights.attend.window = layer.local ? attention.sliding_window : 0;
  weights.attend.softcap = static_cast<float>(attention.logit_softcap);
  return weights;
}

void InvariantGemma::Rep::AddWholeLayer(const InvariantLayer& layer, int number,
                                        const std::vector<float>& next_norm, KernelPhases* list) {
  AddLayer(WeightsOf(layer), next_norm.data(), step.OfLayer(number, RopeOf(layer)), &workspace,
           list, &seams);
}

// Behind its keys and values only the wanted rows go on.
void InvariantGemma::Rep::AddLastLayer(const InvariantLayer& layer, int number,
                                       KernelPhases* list) {
  const LayerWeights weights = WeightsOf(layer);
  AddQueriesKeysValues(weights, step.OfLayer(number, RopeOf(layer)), &workspace, list, &seams);
  if (step.wanted() == 0) return;
  step.AddTaking(list);
  AddAttentionAndFeedForward(weights, final_norm.data(), step.WantedOfLayer(number), &workspace,
                             list, &seams);
}

void InvariantGemma::Rep::AddHead(const ConstRows& normed, absl::Span<float* const> to,
                                  KernelPhases* list) {
  if (to.empty()) return;
  AddSeamedProduct(normed, head, to, &workspace, list, &seams);
  const float cap = static_cast<float>(config.final_logit_softcap);
  if (cap <= 0) return;
  const int64_t vocabulary = config.vocab_size;
  list->Add(static_cast<int64_t>(to.size()), [to, cap, vocabulary](int64_t row) {
    Softcap(cap, vocabulary, {to[static_cast<size_t>(row)], 1, vocabulary});
  });
}

void InvariantGemma::Rep::Forward(absl::Span<const Part> parts) {
  const FloatMode mode;
  BeginStep(parts);
  KernelPhases list;
  AddEmbedding(layers[0].input_norm, &list);
  const int last = config.num_layers - 1;
  for (int i = 0; i < last; ++i) {
    const auto& next = layers[static_cast<size_t>(i) + 1];
    AddWholeLayer(layers[static_cast<size_t>(i)], i, next.input_norm, &list);
  }
  AddLastLayer(layers[static_cast<size_t>(last)], last, &list);
  logits.clear();
  for (const Part& part : parts) {
    if (part.want == 0) continue;
    const int64_t vocabulary = config.vocab_size;
    part.logits->resize(static_cast<size_t>(part.want * vocabulary));
    for (int64_t row = 0; row < part.want; ++row) {
      logits.push_back(part.logits->data() + row * vocabulary);
    }
  }
  AddHead({step.shared().normed.data, step.wanted(), config.hidden_size}, logits, &list);
  list.RunOn(pool.get());
  for (const Part& part : parts) part.kv->Advance(static_cast<int>(part.tokens.size()));
}

absl::Status InvariantGemma::Step(absl::Span<const Part> parts) const {
  if (absl::Status s = rep_->PrepareStep(parts); !s.ok()) return s;
  rep_->Forward(parts);
  return absl::OkStatus();
}

absl::Status InvariantGemma::Step(Kv* kv, absl::Span<const int32_t> tokens, int want,
                                  std::vector<float>* logits) const {
  const Part part{kv, tokens, want, logits};
  return Step(absl::Span<const Part>(&part, 1));
}

InvariantGemma::InvariantGemma(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
InvariantGemma::~InvariantGemma() = default;
const ModelConfig& InvariantGemma::config() const { return rep_->config; }
WeightForm InvariantGemma::weights() const { return rep_->form; }
int InvariantGemma::threads() const { return rep_->pool->threads(); }
const Digest& InvariantGemma::weights_digest() const { return rep_->weights_digest; }
const std::vector<std::string>& InvariantGemma::notes() const { return rep_->notes; }
const KvBlocks& InvariantGemma::kv_blocks() const { return *rep_->kv_blocks; }

InvariantGemma::Kv InvariantGemma::NewKv() const {
  return InvariantKv(rep_->layout, rep_->kv_blocks.get(), rep_->number);
}

}  // namespace hearth
