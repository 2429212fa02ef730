#include "worker/kernels/reference.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <vector>

#include "worker/kernels/attend_plan.h"
#include "worker/kernels/functions.h"
#include "worker/kernels/fused_dot.h"
#include "worker/kernels/integer_product.h"
#include "worker/kernels/quantized/quantized_plane.h"
#include "worker/kernels/quantized/weight_blocks.h"

namespace hearth {
namespace reference {
namespace {

struct RowState {
  float largest = -kInfinity, sum = 0;
  std::vector<float> outputs;
};

template <typename T>
std::vector<float> Widened(const T* from, int64_t count) {
  std::vector<float> wide;
  for (int64_t i = 0; i < count; ++i) wide.push_back(WidenOne(from[i]));
  return wide;
}

// The products of fused_attend.h for one row.
float FusedScore(const float* query, const std::vector<float>& key) {
  std::vector<uint16_t> narrow[2];
  for (size_t i = 0; i < key.size(); ++i) {
    narrow[0].push_back(NarrowOne(query[i]).bits);
    narrow[1].push_back(NarrowOne(key[i]).bits);
  }
  return FusedChain(narrow[0].data(), narrow[1].data(), 0, static_cast<int>(key.size()));
}

template <typename T>
void AddFusedValues(const T* values, const SeenKeys& seen, const std::vector<float>& weights,
                    std::vector<float>* outputs) {
  const auto head_dim = static_cast<int64_t>(outputs->size());
  for (int64_t group = seen.begin / 16 * 16; group < seen.end; group += 16) {
    for (int64_t d = 0; d < head_dim; ++d) {
      uint16_t of_weights[16] = {}, of_values[16] = {};
      for (int64_t key = std::max(group, seen.begin); key < std::min(group + 16, seen.end); ++key) {
        of_weights[key - group] = NarrowOne(weights[static_cast<size_t>(key)]).bits;
        of_values[key - group] =
            exact::FiniteBf16(NarrowOne(WidenOne(values[key * head_dim + d])).bits);
      }
      float& output = (*outputs)[static_cast<size_t>(d)];
      output = FusedDot(of_weights, of_values, output);
    }
  }
}

// Returns the softmax state of one row and one head over the keys of one split.
template <typename T>
RowState SplitState(const AttendShape& shape, const T* keys, const T* values, const SeenKeys& seen,
                    const float* query) {
  RowState state;
  state.outputs.assign(static_cast<size_t>(shape.head_dim), 0.0f);
  std::vector<float> weights(static_cast<size_t>(shape.split), 0.0f);
  for (int64_t key = seen.begin; key < seen.end; ++key) {
    const std::vector<float> wide = Widened(keys + key * shape.head_dim, shape.head_dim);
    float& score = weights[static_cast<size_t>(key)];
    score = shape.fuses ? FusedScore(query, wide) : Dot(query, wide.data(), shape.head_dim);
    if (shape.softcap > 0) score = Tanh(score / shape.softcap) * shape.softcap;
    state.largest = std::max(state.largest, score);
  }
  float sums[16] = {};
  for (int64_t key = seen.begin; key < seen.end; ++key) {
    float& weight = weights[static_cast<size_t>(key)];
    weight = Exp(weight - state.largest);
    if (shape.fuses) weight = WidenOne(NarrowOne(weight));
    sums[key % 16] += weight;
    for (int64_t d = 0; d < shape.head_dim && !shape.fuses; ++d) {
      float& output = state.outputs[static_cast<size_t>(d)];
      output = std::fma(weight, WidenOne(values[key * shape.head_dim + d]), output);
    }
  }
  state.sum = TreeSum(sums);
  if (shape.fuses) AddFusedValues(values, seen, weights, &state.outputs);
  return state;
}

template <typename T>
void RowOf(const AttendShape& shape, const std::byte* const* blocks, int64_t kv_head,
           int64_t position, const float* query, float* out) {
  RowState all;
  all.outputs.assign(static_cast<size_t>(shape.head_dim), 0.0f);
  const int64_t head = shape.split * shape.head_dim;
  for (int64_t split = 0; split <= position / shape.split; ++split) {
    const SeenKeys seen = KeysSeen(shape, position, split);
    if (seen.none()) continue;
    const T* block = reinterpret_cast<const T*>(blocks[split]);
    const RowState one = SplitState(shape, block + kv_head * head,
                                    block + (shape.kv_heads + kv_head) * head, seen, query);
    const float largest = std::max(all.largest, one.largest);
    const float before = Exp(all.largest - largest), now = Exp(one.largest - largest);
    all.largest = largest;
    all.sum = std::fma(all.sum, before, one.sum * now);
    for (size_t d = 0; d < all.outputs.size(); ++d) {
      all.outputs[d] = std::fma(all.outputs[d], before, one.outputs[d] * now);
    }
  }
  const float inverse = 1.0f / all.sum;
  for (size_t d = 0; d < all.outputs.size(); ++d) out[d] = all.outputs[d] * inverse;
}

}  // namespace

IntegerBlock QuantizeBlock(const float* x, int64_t count) {
  IntegerBlock block;
  float most = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!(std::fabs(x[i]) <= most)) most = std::fabs(x[i]);
    if (std::isnan(most)) break;
  }
  if (!std::isfinite(most)) {
    block.d = std::numeric_limits<float>::quiet_NaN();
  } else if (most >= kLeastQuantized) {
    const float inverse = 127 / most;
    block.d = most / 127;
    for (int64_t i = 0; i < count; ++i) {
      block.q[i] = static_cast<int>(std::nearbyint(x[i] * inverse));
    }
  }
  return block;
}

namespace {

// Adds one block of 32 inputs, the row's integers times the weights', to an output's sum y.
float AddRun(const IntegerBlock& x, const BlockRun& run, bool has_least, float y) {
  int32_t parts[2] = {}, sum = 0;
  for (int i = 0; i < 32; ++i) {
    parts[i / 16] += x.q[i] * (run.q[i] - run.zero);
    sum += x.q[i];
  }
  const int32_t s = run.part[0] * parts[0] + run.part[1] * parts[1];
  y = std::fma(static_cast<float>(s), x.d * run.d, y);
  return has_least ? std::fma(static_cast<float>(sum), x.d * run.m, y) : y;
}

void IntegerProductRow(const float* x, const PackedWeights& weights, int64_t begin, int64_t end,
                       float* y) {
  const int64_t inputs = weights.inputs(), values = FormOf(weights.type()).values;
  const bool has_least = HalvesOf(weights.type()).count == 2;
  std::vector<IntegerBlock> blocks;
  for (int64_t k = 0; k < inputs; k += 32) {
    blocks.push_back(QuantizeBlock(x + k, std::min<int64_t>(32, inputs - k)));
  }
  for (int64_t output = begin; output < end; ++output) {
    float sum = 0;
    std::byte packed[PackedWeights::kMaxBlockBytes];
    for (int64_t k = 0; k < inputs; k += 32) {
      if (k % values == 0) weights.GatherBlock(output, k, packed);
      const BlockRun run = RunOf(weights.type(), packed, k % values / 32);
      sum = AddRun(blocks[static_cast<size_t>(k / 32)], run, has_least, sum);
    }
    y[output - begin] = sum;
  }
}

void FusedProductRow(const float* x, const PackedWeights& weights, int64_t begin, int64_t end,
                     float* y) {
  const auto inputs = static_cast<size_t>(weights.inputs());
  const size_t padded = (inputs + kStepInputs - 1) / kStepInputs * kStepInputs;
  std::vector<uint16_t> row(padded), narrow(padded);
  std::vector<float> wide(inputs);
  for (size_t k = 0; k < inputs; ++k) row[k] = NarrowOne(x[k]).bits;
  for (int64_t output = begin; output < end; ++output) {
    weights.WidenOutput(output, wide.data());
    for (size_t k = 0; k < inputs; ++k) narrow[k] = NarrowOne(wide[k]).bits;
    y[output - begin] = FusedChain(narrow.data(), row.data(), 0, static_cast<int>(padded));
  }
}

}  // namespace

void ProductRow(const float* x, const PackedWeights& weights, int64_t begin, int64_t end,
                float* y) {
  if (weights.arithmetic() == Arithmetic::kInt8) {
    return IntegerProductRow(x, weights, begin, end, y);
  }
  if (weights.arithmetic() == Arithmetic::kBFloat16) {
    return FusedProductRow(x, weights, begin, end, y);
  }
  std::vector<float> wide(static_cast<size_t>(weights.inputs()));
  for (int64_t output = begin; output < end; ++output) {
    weights.WidenOutput(output, wide.data());
    float sum = 0;
    for (int64_t k = 0; k < weights.inputs(); ++k) {
      sum = std::fma(x[k], wide[static_cast<size_t>(k)], sum);
    }
    y[output - begin] = sum;
  }
}

float Dot(const float* a, const float* b, int64_t count) {
  float sums[16] = {};
  for (int64_t i = 0; i < count; ++i) sums[i % 16] = std::fma(a[i], b[i], sums[i % 16]);
  return TreeSum(sums);
}

void RmsNormRow(const float* x, int64_t columns, const float* scale, float epsilon, float* y) {
  const float mean = Dot(x, x, columns) / static_cast<float>(columns);
  const float inverse = 1.0f / std::sqrt(mean + epsilon);
  for (int64_t i = 0; i < columns; ++i) y[i] = (x[i] * inverse) * scale[i];
}

void RotateRow(const float* cos, const float* sin, int64_t half, float* x) {
  for (int64_t i = 0; i < half; ++i) {
    const float first = x[i], second = x[half + i];
    x[i] = std::fma(first, cos[i], -(second * sin[i]));
    x[half + i] = std::fma(second, cos[i], first * sin[i]);
  }
}

void AttendRow(const AttendShape& shape, const AttendSequence& sequence, int64_t kv_head,
               int64_t position, const float* query, float* out) {
  if (sequence.sealed == nullptr) {
    return AttendRow(shape, sequence.blocks, kv_head, position, query, out);
  }
  const int64_t own = position / shape.split, values = shape.split * shape.head_dim;
  std::vector<std::vector<float>> opened(static_cast<size_t>(own));
  std::vector<const std::byte*> blocks;
  for (int64_t split = 0; split < own; ++split) {
    if (KeysSeen(shape, position, split).none()) {
      blocks.push_back(nullptr);
      continue;
    }
    if (!sequence.quantization.is_on()) {
      blocks.push_back(sequence.sealed[split]);
      continue;
    }
    std::vector<float>& rows = opened[static_cast<size_t>(split)];
    rows.resize(static_cast<size_t>(2 * shape.kv_heads * values));
    const KvQuantization& form = sequence.quantization;
    for (int64_t number = 0; number < 2 * shape.kv_heads; ++number) {
      const int axis = number < shape.kv_heads ? form.axis_key : form.axis_value;
      const QuantizedPlane plane{form, axis, shape.split, shape.head_dim};
      const auto offset = number * static_cast<int64_t>(plane.bytes());
      DequantizePlane(plane, sequence.sealed[split] + offset, rows.data() + number * values);
    }
    blocks.push_back(reinterpret_cast<const std::byte*>(rows.data()));
  }
  AttendShape opened_shape = shape;
  std::vector<float> wide;
  const std::byte* last = sequence.blocks[own];
  if (sequence.quantization.is_on() && shape.kv_type == ElementType::kBFloat16) {
    wide = Widened(reinterpret_cast<const BFloat16*>(last), 2 * shape.kv_heads * values);
    last = reinterpret_cast<const std::byte*>(wide.data());
    opened_shape.kv_type = ElementType::kFloat32;
  }
  blocks.push_back(last);
  AttendRow(opened_shape, blocks.data(), kv_head, position, query, out);
}

void AttendRow(const AttendShape& shape, const std::byte* const* blocks, int64_t kv_head,
               int64_t position, const float* query, float* out) {
  if (shape.kv_type == ElementType::kBFloat16)
    return RowOf<BFloat16>(shape, blocks, kv_head, position, query, out);
  assert(shape.kv_type == ElementType::kFloat32);
  RowOf<float>(shape, blocks, kv_head, position, query, out);
}

}  // namespace reference
}  // namespace hearth
