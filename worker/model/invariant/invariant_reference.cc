#include "worker/model/invariant/invariant_reference.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "worker/kernels/reference.h"

namespace hearth {

InvariantReference::InvariantReference(const LayerWeights& weights, const float* next_norm,
                                       ReferencePlace place, std::vector<float> x,
                                       std::vector<float> normed)
    : weights_(weights),
      next_norm_(next_norm),
      place_(std::move(place)),
      x_(std::move(x)),
      normed_(std::move(normed)) {}

bool InvariantReference::SameBits(const float* a, const float* b, int64_t count) {
  if (std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0) return true;
  for (int64_t i = 0; i < count; ++i) {
    const bool same = std::memcmp(&a[i], &b[i], sizeof(float)) == 0;
    if (!same && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  }
  return true;
}

InvariantReference::Row InvariantReference::ProductOf(const Row& x, const PackedWeights& weights) {
  Row y(static_cast<size_t>(weights.outputs()));
  reference::ProductRow(x.data(), weights, 0, weights.outputs(), y.data());
  return y;
}

InvariantReference::Row InvariantReference::NormOf(const Row& x, const float* scale) const {
  Row y(x.size());
  reference::RmsNormRow(x.data(), static_cast<int64_t>(x.size()), scale, weights_.heads.epsilon,
                        y.data());
  return y;
}

// Of the queries and keys in `last_`.
void InvariantReference::NormAndRotate() {
  const QkvShape& shape = weights_.heads;
  for (int64_t head = 0; head < shape.heads + shape.kv_heads; ++head) {
    float* at = last_.data() + head * shape.head_dim;
    const float* scale = head < shape.heads ? shape.q_scale : shape.k_scale;
    reference::RmsNormRow(at, shape.head_dim, scale, shape.epsilon, at);
    reference::RotateRow(place_.token.cos, place_.token.sin, shape.head_dim / 2, at);
  }
}

bool InvariantReference::KeysAndValuesHold() const {
  const QkvShape& shape = weights_.heads;
  const QkvToken& token = place_.token;
  const float* keys = last_.data() + shape.heads * shape.head_dim;
  const float* values = keys + shape.kv_heads * shape.head_dim;
  for (int64_t head = 0; head < shape.kv_heads; ++head) {
    const int64_t from = head * shape.head_dim, at = head * token.head_stride;
    if (!SameBits(keys + from, token.keys + at, shape.head_dim) ||
        !SameBits(values + from, token.values + at, shape.head_dim)) {
      return false;
    }
  }
  return true;
}

InvariantReference::Row InvariantReference::Attention() const {
  const AttendShape& shape = weights_.attend;
  Row attended(static_cast<size_t>(shape.heads * shape.head_dim));
  for (int64_t head = 0; head < shape.heads; ++head) {
    const int64_t at = head * shape.head_dim;
    reference::AttendRow(shape, place_.blocks.data(), head / shape.sharers(), place_.position,
                         last_.data() + at, attended.data() + at);
  }
  return attended;
}

InvariantReference::Row InvariantReference::GeluOfGateTimesUp() const {
  Row gate = ProductOf(normed_, *weights_.gate);
  const Row up = ProductOf(normed_, *weights_.up);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = reference::Gelu(gate[i]) * up[i];
  return gate;
}

bool InvariantReference::Matches(const float* row, int64_t columns) {
  const auto sum = [this](const float* scale) {
    const Row more = NormOf(last_, scale);
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = x_[i] + more[i];
    return x_;
  };
  bool kv_holds = true;
  switch (operation_++) {
    case 0:
      last_ = ProductOf(normed_, *weights_.qkv);
      break;
    case 1:
      NormAndRotate();
      kv_holds = KeysAndValuesHold();
      break;
    case 2:
      last_ = Attention();
      break;
    case 3:
      last_ = ProductOf(last_, *weights_.out);
      break;
    case 4:
      last_ = sum(weights_.post_attention_norm);
      break;
    case 5:
      last_ = normed_ = NormOf(x_, weights_.pre_feedforward_norm);
      break;
    case 6:
      last_ = GeluOfGateTimesUp();
      break;
    case 7:
      last_ = ProductOf(last_, *weights_.down);
      break;
    case 8:
      last_ = sum(weights_.post_feedforward_norm);
      break;
    default:
      last_ = normed_ = NormOf(x_, next_norm_);
  }
  return kv_holds && SameBits(last_.data(), row, columns);
}

}  // namespace hearth
