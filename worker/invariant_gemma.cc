// The forward pass, top to bottom.
#include "worker/invariant_gemma.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/invariant_gemma_rep.h"
#include "worker/invariant_self_test.h"
#include "worker/kernels/float_mode.h"
#include "worker/self_test_memory.h"

namespace hearth {

Buffer InvariantGemma::Rep::Norm(const Buffer& x, const std::vector<float>& scale) {
  Buffer y(x.view.rows, x.columns);
  ForRows(x.view.rows, [&](int64_t row) {
    RmsNorm({x.view.Row(row), 1, x.columns}, x.columns, scale.data(), epsilon,
            {y.view.Row(row), 1, y.columns});
  });
  return y;
}

void InvariantGemma::Rep::AddNorm(const std::vector<float>& scale, Buffer* y, Buffer* x) {
  ForRows(x->view.rows, [&](int64_t row) {
    const FloatMode mode;
    float *more = y->view.Row(row), *to = x->view.Row(row);
    RmsNorm({more, 1, y->columns}, y->columns, scale.data(), epsilon, {more, 1, y->columns});
    for (int64_t i = 0; i < x->columns; ++i) to[i] += more[i];
  });
}

void InvariantGemma::Rep::NormQueriesAndKeys(const InvariantLayer& layer, int64_t begin,
                                             Buffer* qkv) {
  const int64_t heads = config.num_heads, kv_heads = config.num_kv_heads, dim = config.head_dim;
  RopeTable& rope = layer.local ? local_rope : global_rope;
  rope.Extend(begin + qkv->view.rows);
  ForRows(qkv->view.rows, [&](int64_t row) {
    float* at = qkv->view.Row(row);
    RmsNorm({at, heads, dim}, dim, layer.q_norm.data(), epsilon, {at, heads, dim});
    float* keys = at + heads * dim;
    RmsNorm({keys, kv_heads, dim}, dim, layer.k_norm.data(), epsilon, {keys, kv_heads, dim});
    // One position for all heads.
    const int64_t all = heads + kv_heads;
    Rotate({rope.Cos(begin + row, 1).data, all, 0}, {rope.Sin(begin + row, 1).data, all, 0},
           dim / 2, {at, all, dim});
  });
}

void InvariantGemma::Rep::Append(int number, const Buffer& qkv, Kv* kv) {
  const int64_t heads = config.num_heads, kv_heads = config.num_kv_heads, dim = config.head_dim;
  for (int64_t row = 0; row < qkv.view.rows; ++row) {
    const int position = kv->length() + static_cast<int>(row);
    float* slice = reinterpret_cast<float*>(kv->SliceAt(number, position));
    for (int64_t head = 0; head < 2 * kv_heads; ++head) {  // keys, then values
      std::copy_n(qkv.view.Row(row) + (heads + head) * dim, dim,
                  slice + (head * chunk + position % chunk) * dim);
    }
  }
}

void InvariantGemma::Rep::AttendInLayer(const InvariantLayer& layer, int number, Kv* kv,
                                        Buffer* x) {
  const int64_t rows = x->view.rows, begin = kv->length();
  const int64_t query_columns = int64_t{config.num_heads} * config.head_dim;
  Buffer qkv(rows, layer.qkv.outputs()), attended(rows, query_columns), out(rows, x->columns);
  const Buffer normed = Norm(*x, layer.input_norm);
  Show("input norm", normed);
  Multiply(normed.in(), layer.qkv, &qkv);
  Show("product q, k, v", qkv);
  NormQueriesAndKeys(layer, begin, &qkv);
  Show("norm and rotation of q and k", qkv);
  Append(number, qkv, kv);
  const std::vector<const std::byte*> splits = kv->SplitsOf(number);
  const AttendSequence sequence{splits.data(), begin, rows};
  Attend(ShapeOf(layer), {&sequence, 1}, qkv.in(), attended.view, &workspace, parallel());
  Show("attention", attended);
  Multiply(attended.in(), layer.out, &out);
  Show("product out", out);
  AddNorm(layer.post_attention_norm, &out, x);
  Show("norm after attention", *x);
}

void InvariantGemma::Rep::FeedForwardInLayer(const InvariantLayer& layer, Buffer* x) {
  const int64_t rows = x->view.rows, width = layer.down.inputs();
  Buffer both(rows, 2 * width), out(rows, x->columns);
  const Buffer normed = Norm(*x, layer.pre_feedforward_norm);
  Show("norm before feed-forward", normed);
  Multiply(normed.in(), layer.gate_up, &both);
  Show("product gate, up", both);
  ForRows(rows, [&](int64_t row) {
    float* gate = both.view.Row(row);
    GeluTimes({gate, 1, width}, {gate + width, 1, width}, width, {gate, 1, width});
  });
  Show("GELU", both);
  Multiply(both.in(), layer.down, &out);
  Show("product down", out);
  AddNorm(layer.post_feedforward_norm, &out, x);
  Show("norm after feed-forward", *x);
}

Buffer InvariantGemma::Rep::Embed(absl::Span<const int32_t> tokens) const {
  const int64_t rows = static_cast<int64_t>(tokens.size()), hidden = config.hidden_size;
  const float scale = static_cast<float>(std::sqrt(static_cast<double>(hidden)));
  Buffer x(rows, hidden);
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<float> embedded =
        WidenRow(embedding, tokens[static_cast<size_t>(row)], hidden);
    for (int64_t i = 0; i < hidden; ++i) {
      x.view.Row(row)[i] = embedded[static_cast<size_t>(i)] * scale;
    }
  }
  return x;
}

Buffer InvariantGemma::Rep::HeadOf(const Buffer& x, int64_t begin, int64_t count) {
  Buffer last(count, x.columns);
  std::copy_n(x.view.Row(begin), count * x.columns, last.data.data());
  const Buffer normed = Norm(last, final_norm);
  Buffer out(count, config.vocab_size);
  Multiply(normed.in(), head, &out);
  if (config.final_logit_softcap > 0) {
    Softcap(static_cast<float>(config.final_logit_softcap), out.columns, out.view);
  }
  return out;
}

void InvariantGemma::Rep::Forward(Kv* kv, absl::Span<const int32_t> tokens, int want,
                                  std::vector<float>* logits) {
  const FloatMode mode;
  Buffer x = Embed(tokens);
  for (int i = 0; i < config.num_layers; ++i) {
    const InvariantLayer& layer = layers[static_cast<size_t>(i)];
    AttendInLayer(layer, i, kv, &x);
    FeedForwardInLayer(layer, &x);
  }
  kv->Advance(static_cast<int>(x.view.rows));
  if (want > 0) *logits = std::move(HeadOf(x, x.view.rows - want, want).data);
}

absl::Status InvariantGemma::Rep::CheckStep(const Kv& kv, absl::Span<const int32_t> tokens,
                                            int want) const {
  if (kv.model() != number) {
    return absl::InvalidArgumentError(
        kv.model() == 0
            ? "the Kv was moved from, or is not from NewKv: there is nothing to append to"
            : "the Kv is of another model: take one from this model's NewKv");
  }
  if (tokens.empty() || want < 0 || static_cast<size_t>(want) > tokens.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", tokens.size(), " tokens, logits of ", want, " of them"));
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", token, " is not in [0, ", config.vocab_size, ")"));
    }
  }
  if (tokens.size() > static_cast<size_t>(config.max_position_embeddings - kv.length())) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokens.size(), " tokens behind ", kv.length(), " are more than the model's ",
                     config.max_position_embeddings, " positions (max_position_embeddings)"));
  }
  if (want > kStepLogitsMax / config.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "logits of ", want, " tokens, ", config.vocab_size, " each: a step gives at most ",
        kStepLogitsMax, " in all, so of ", kStepLogitsMax / config.vocab_size, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status InvariantGemma::Step(Kv* kv, absl::Span<const int32_t> tokens, int want,
                                  std::vector<float>* logits) const {
  if (want > 0 && logits == nullptr) {
    return absl::InvalidArgumentError("logits are wanted, but there is no place for them");
  }
  const absl::Status checked = rep_->CheckStep(*kv, tokens, want);
  if (!checked.ok()) return checked;
  const absl::Status room = kv->MakeRoom(static_cast<int>(tokens.size()));
  if (!room.ok()) return room;
  rep_->Forward(kv, tokens, want, logits);
  return absl::OkStatus();
}

InvariantGemma::InvariantGemma(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
InvariantGemma::~InvariantGemma() = default;
const ModelConfig& InvariantGemma::config() const { return rep_->config; }
int InvariantGemma::threads() const { return rep_->pool->threads(); }
const Digest& InvariantGemma::weights_digest() const { return rep_->weights_digest; }
const std::vector<std::string>& InvariantGemma::notes() const { return rep_->notes; }
const KvBlocks& InvariantGemma::kv_blocks() const { return *rep_->kv_blocks; }
absl::Status InvariantGemma::SelfTest(const std::string& cache_dir) {
  const absl::Time begin = absl::Now();
  const SelfTestMemory memory(cache_dir, rep_->weights_digest, rep_->chunk);
  if (memory.Holds()) {
    rep_->notes.push_back("self-test of the class invariant: held on an earlier start");
    return absl::OkStatus();
  }
  InvariantSelfTest test(rep_.get());
  if (absl::Status held = test.Run(); !held.ok()) return held;
  memory.Remember();
  rep_->notes.push_back(absl::StrCat("self-test of the class invariant: held in ", test.passes(),
                                     " step sizes, ",
                                     absl::ToInt64Milliseconds(absl::Now() - begin), " ms"));
  return absl::OkStatus();
}

InvariantGemma::Kv InvariantGemma::NewKv() const {
  return InvariantKv(rep_->layout, rep_->kv_blocks.get(), rep_->number);
}

}  // namespace hearth
