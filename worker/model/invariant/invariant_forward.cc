// The forward pass, top to bottom: loops in a list, which then runs as one sequence on the threads.
#include "worker/model/invariant/invariant_forward.h"

#include <cmath>

#include "worker/kernels/float_mode.h"
#include "worker/kernels/row_kernels.h"

namespace hearth {
namespace {

RopeTable TableOf(const RopeConfig& rope, const ModelConfig& config) {
  return RopeTable(rope.theta, rope.linear_factor, config.attention.head_dim);
}

}  // namespace

InvariantForward::InvariantForward(const InvariantWeights* weights, int64_t chunk, ThreadPool* pool,
                                   LayerSeams seams)
    : weights_(weights),
      config_(weights->config()),
      chunk_(chunk),
      pool_(pool),
      seams_(std::move(seams)),
      global_rope_(TableOf(config_.rope.global, config_)),
      local_rope_(TableOf(config_.rope.local, config_)) {}

void InvariantForward::Begin(Parts parts) {
  step_.Begin(parts, {config_.hidden_size, weights_->layer(0).qkv.outputs(),
                      weights_->layer(0).out.inputs(), weights_->layer(0).down.inputs()});
  local_rope_.Extend(step_.end());
  global_rope_.Extend(step_.end());
}

void InvariantForward::AddEmbedding(const std::vector<float>& first_norm, KernelPhases* list) {
  const int64_t hidden = config_.hidden_size;
  const float scale = static_cast<float>(std::sqrt(static_cast<double>(hidden)));
  list->AddRows(step_.rows(), [this, &first_norm, hidden, scale](int64_t row) {
    const FloatMode mode;
    float* x = step_.shared().x.Row(row);
    weights_->WidenEmbedding(step_.token(row), x);
    for (int64_t i = 0; i < hidden; ++i) x[i] = x[i] * scale;
    RmsNorm({x, 1, hidden}, hidden, first_norm.data(), epsilon(),
            {step_.shared().normed.Row(row), 1, hidden});
  });
}

LayerWeights InvariantForward::WeightsOf(const InvariantLayer& layer) const {
  LayerWeights weights;
  weights.qkv = &layer.qkv;
  weights.out = &layer.out;
  weights.gate = &layer.gate;
  weights.up = &layer.up;
  weights.down = &layer.down;
  weights.post_attention_norm = layer.post_attention_norm.data();
  weights.pre_feedforward_norm = layer.pre_feedforward_norm.data();
  weights.post_feedforward_norm = layer.post_feedforward_norm.data();
  const AttentionConfig& attention = config_.attention;
  weights.heads = {attention.num_heads, attention.num_kv_heads, attention.head_dim,
                   layer.q_norm.data(), layer.k_norm.data(),    epsilon()};
  weights.attend.heads = attention.num_heads;
  weights.attend.kv_heads = attention.num_kv_heads;
  weights.attend.head_dim = attention.head_dim;
  weights.attend.split = chunk_;
  weights.attend.window = layer.local ? attention.sliding_window : 0;
  weights.attend.softcap = static_cast<float>(attention.logit_softcap);
  return weights;
}

void InvariantForward::AddWholeLayer(const InvariantLayer& layer, int number,
                                     const std::vector<float>& next_norm, KernelPhases* list) {
  const LayerWeights weights = WeightsOf(layer);
  const LayerRows rows = step_.OfLayer(number, RopeOf(layer));
  AddQueriesKeysValues(weights, rows, &workspace_, list, &seams_);
  step_.AddSealing(number, list);
  AddAttentionAndFeedForward(weights, next_norm.data(), rows, &workspace_, list, &seams_);
}

// Behind its keys and values only the wanted rows go on.
void InvariantForward::AddLastLayer(const InvariantLayer& layer, int number, KernelPhases* list) {
  const LayerWeights weights = WeightsOf(layer);
  AddQueriesKeysValues(weights, step_.OfLayer(number, RopeOf(layer)), &workspace_, list, &seams_);
  step_.AddSealing(number, list);
  if (step_.wanted() == 0) return;
  step_.AddTaking(list);
  AddAttentionAndFeedForward(weights, weights_->final_norm().data(), step_.WantedOfLayer(number),
                             &workspace_, list, &seams_);
}

void InvariantForward::AddHead(const ConstRows& normed, absl::Span<float* const> to,
                               KernelPhases* list) {
  if (to.empty()) return;
  AddSeamedProduct(normed, weights_->head(), to, &workspace_, list, &seams_);
  const float cap = static_cast<float>(config_.final_logit_softcap);
  if (cap <= 0) return;
  const int64_t vocabulary = config_.vocab_size;
  list->Add(static_cast<int64_t>(to.size()), [to, cap, vocabulary](int64_t row) {
    Softcap(cap, vocabulary, {to[static_cast<size_t>(row)], 1, vocabulary});
  });
}

void InvariantForward::Run(Parts parts) {
  const FloatMode mode;
  Begin(parts);
  KernelPhases list;
  AddEmbedding(weights_->layer(0).input_norm, &list);
  const int last = config_.num_layers - 1;
  for (int i = 0; i < last; ++i) {
    const auto& next = weights_->layer(i + 1);
    AddWholeLayer(weights_->layer(i), i, next.input_norm, &list);
  }
  AddLastLayer(weights_->layer(last), last, &list);
  logits_.clear();
  for (const InvariantPart& part : parts) {
    if (part.want == 0) continue;
    const int64_t vocabulary = config_.vocab_size;
    part.logits->resize(static_cast<size_t>(part.want * vocabulary));
    for (int64_t row = 0; row < part.want; ++row) {
      logits_.push_back(part.logits->data() + row * vocabulary);
    }
  }
  AddHead({step_.shared().normed.data, step_.wanted(), config_.hidden_size}, logits_, &list);
  RunList(&list);
  for (const InvariantPart& part : parts) part.kv->Advance(static_cast<int>(part.tokens.size()));
}

}  // namespace hearth
