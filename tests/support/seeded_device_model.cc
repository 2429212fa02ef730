#include "tests/support/seeded_device_model.h"

#include <cassert>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "worker/kernels/rope_table.h"

namespace hearth {
namespace {

float* CopyFloats(Device* device, const float* from, size_t count) {
  void* to = device->Allocate(count * sizeof(float));
  if (to == nullptr) {
    std::fprintf(stderr, "the device has no memory for %zu floats\n", count);
    std::abort();
  }
  device->CopyIn(to, from, count * sizeof(float));
  return static_cast<float*>(to);
}

// Copies a norm to the device: (weight + 1) * factor in float32, as InvariantWeights computes it.
const float* MakeNorm(Device* device, int layer, SeededTensor tensor, int columns,
                      float factor = 1) {
  const SeededMatrix seeded = SeededOf(layer, tensor, 0);
  std::vector<float> norm;
  for (int i = 0; i < columns; ++i) {
    const float weight = exact::FloatOf(uint32_t{seeded.Weight(i, 0)} << 16);
    norm.push_back((weight + 1.0f) * factor);
  }
  return CopyFloats(device, norm.data(), norm.size());
}

void MakeRope(Device* device, double theta, int head_dim, int positions, const float** cos,
              const float** sin) {
  RopeTable table({theta}, head_dim);
  table.Extend(positions);
  const size_t count = static_cast<size_t>(positions) * static_cast<size_t>(head_dim / 2);
  *cos = CopyFloats(device, table.Cos(0, positions).data, count);
  *sin = CopyFloats(device, table.Sin(0, positions).data, count);
}

}  // namespace

std::vector<uint16_t> PackColumns(int inputs, int outputs, bool is_pair, const FillRow& fill) {
  constexpr int kGroup = DeviceMatrix::kGroup;
  assert(inputs % kGroup == 0 && (!is_pair || outputs % kGroup == 0));
  const int columns = PaddedColumns(is_pair ? 2 * outputs : outputs);
  std::vector<uint16_t> packed(MatrixValues(inputs, columns));
  std::vector<uint16_t> row(static_cast<size_t>(inputs));
  for (int output = 0; output < outputs; ++output) {
    for (const bool is_second : {false, true}) {
      if (is_second && !is_pair) continue;
      fill(output, is_second, row.data());
      PackColumn(row, is_pair ? PairColumn(output, is_second) : output, columns, packed.data());
    }
  }
  return packed;
}

DeviceMatrix MakeSeededMatrix(Device* device, const std::vector<SeededRows>& rows, int inputs,
                              bool is_pair) {
  int outputs = 0;
  for (const SeededRows& one : rows) outputs += one.outputs;
  if (is_pair) outputs /= 2;
  const auto fill = [&](int output, bool is_second, uint16_t* row) {
    size_t at = is_second ? 1 : 0;
    while (!is_pair && output >= rows[at].outputs) output -= rows[at++].outputs;
    for (int i = 0; i < inputs; ++i) row[i] = rows[at].seeded.Weight(output, i);
  };
  const std::vector<uint16_t> packed = PackColumns(inputs, outputs, is_pair, fill);
  void* data = device->Allocate(packed.size() * sizeof(uint16_t));
  device->CopyIn(data, packed.data(), packed.size() * sizeof(uint16_t));
  return {static_cast<const uint16_t*>(data), inputs,
          PaddedColumns(is_pair ? 2 * outputs : outputs), outputs};
}

DeviceModel MakeSeededModel(Device* device, const SeededGeometry& g, int split, int positions,
                            const MakeMatrix& make) {
  DeviceModel model;
  DeviceShape& shape = model.shape;
  shape.hidden = g.hidden;
  shape.intermediate = g.intermediate;
  shape.vocabulary = g.vocabulary;
  shape.heads = g.heads;
  shape.kv_heads = g.kv_heads;
  shape.head_dim = g.head_dim;
  shape.split = split;
  shape.window = g.window;
  shape.attention_softcap = static_cast<float>(g.attention_softcap);
  shape.logit_softcap = static_cast<float>(g.logit_softcap);
  shape.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(g.hidden)));
  const int q = g.heads * g.head_dim, kv = g.kv_heads * g.head_dim;
  const float query_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(g.head_dim)));
  for (int i = 0; i < static_cast<int>(g.layer_types.size()); ++i) {
    shape.is_global.push_back(g.layer_types[static_cast<size_t>(i)] == 'g');
    const auto rows = [i](SeededTensor tensor, int outputs, int inputs) {
      return SeededRows{SeededOf(i, tensor, inputs), outputs};
    };
    const auto norm = [&](SeededTensor tensor) { return MakeNorm(device, i, tensor, g.hidden); };
    DeviceLayer layer;
    layer.qkv = make({rows(SeededTensor::kQ, q, g.hidden), rows(SeededTensor::kK, kv, g.hidden),
                      rows(SeededTensor::kV, kv, g.hidden)},
                     g.hidden, false);
    layer.out = make({rows(SeededTensor::kOut, g.hidden, q)}, q, false);
    layer.gate_up = make({rows(SeededTensor::kGate, g.intermediate, g.hidden),
                          rows(SeededTensor::kUp, g.intermediate, g.hidden)},
                         g.hidden, true);
    layer.down = make({rows(SeededTensor::kDown, g.hidden, g.intermediate)}, g.intermediate, false);
    layer.input_norm = norm(SeededTensor::kInputNorm);
    layer.post_attention_norm = norm(SeededTensor::kPostAttentionNorm);
    layer.pre_feedforward_norm = norm(SeededTensor::kPreFeedforwardNorm);
    layer.post_feedforward_norm = norm(SeededTensor::kPostFeedforwardNorm);
    layer.q_norm = MakeNorm(device, i, SeededTensor::kQNorm, g.head_dim, query_scale);
    layer.k_norm = MakeNorm(device, i, SeededTensor::kKNorm, g.head_dim);
    model.layers.push_back(layer);
  }
  model.head =
      make({{SeededOf(0, SeededTensor::kEmbedding, g.hidden), g.vocabulary}}, g.hidden, false);
  model.final_norm = MakeNorm(device, 0, SeededTensor::kFinalNorm, g.hidden);
  MakeRope(device, 10000.0, g.head_dim, positions, &model.cos[0], &model.sin[0]);
  MakeRope(device, 1000000.0, g.head_dim, positions, &model.cos[1], &model.sin[1]);
  return model;
}

}  // namespace hearth
