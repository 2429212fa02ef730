// DeviceModel: the shape of a Gemma 3 model, and its weights in device memory.
//
// Thread safety: values; pure functions. Ownership: the device owns the memory of the weights.
#ifndef HEARTH_WORKER_DEVICE_DEVICE_MODEL_H_
#define HEARTH_WORKER_DEVICE_DEVICE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/device/product_program.h"

namespace hearth {

struct DeviceShape {
  int hidden = 0, intermediate = 0, vocabulary = 0;
  int heads = 0, kv_heads = 0, head_dim = 0;
  int split = 128;          // tokens of a KV block
  int window = 0;           // sliding window of the local layers, in tokens
  bool kv_is_bf16 = false;  // element type of keys and values: bfloat16, else float32
  float epsilon = 1e-6f, embedding_scale = 1;
  float attention_softcap = 0, logit_softcap = 0;  // 0: no softcap
  std::vector<bool> is_global;                     // whether each layer has global attention

  int layers() const { return static_cast<int>(is_global.size()); }
  int qkv() const { return (heads + 2 * kv_heads) * head_dim; }
  int attended() const { return heads * head_dim; }
  // SliceBytes: bytes of one layer's keys and values in a KV block. LayersBefore: number of earlier
  // layers of the same kind (local or global).
  int64_t SliceBytes() const { return int64_t{kv_is_bf16 ? 4 : 8} * kv_heads * split * head_dim; }
  int LayersBefore(int layer) const {
    int before = 0;
    for (int i = 0; i < layer; ++i) before += is_global[i] == is_global[layer] ? 1 : 0;
    return before;
  }
  int LayersIn(bool global) const {
    int count = 0;
    for (const bool is : is_global) count += is == global ? 1 : 0;
    return count;
  }
};

struct DeviceLayer {
  DeviceMatrix qkv, out, gate_up, down;
  const float* input_norm = nullptr;
  const float* post_attention_norm = nullptr;
  const float* pre_feedforward_norm = nullptr;
  const float* post_feedforward_norm = nullptr;
  const float* q_norm = nullptr;  // multiplied by the attention's query scale
  const float* k_norm = nullptr;
};

struct DeviceModel {
  DeviceShape shape;
  std::vector<DeviceLayer> layers;
  // whether products and attention compute in bfloat16 (Bf16ProductProgram, Bf16AttendProgram),
  // else in float32; needs kv_is_bf16
  bool multiplies_bf16 = false;
  bool has_integers = false;  // whether any matrix is quantized (IntegerProductProgram)
  DeviceMatrix head;          // output matrix; also the embedding (tied weights)
  const float* final_norm = nullptr;
  // RoPE tables, [0] local and [1] global: [positions][head_dim / 2]
  const float *cos[2] = {}, *sin[2] = {};
};

// PaddedColumns: number of columns for `outputs` outputs, with padding. PairColumn: column of an
// output of a matrix pair (gate and up are interleaved).
inline int PaddedColumns(int outputs) {
  constexpr int kGrain = DeviceMatrix::kColumnGrain;
  return (outputs + kGrain - 1) / kGrain * kGrain;
}
HEARTH_HOST_DEVICE int PairColumn(int output, bool is_second) {
  return output / 8 * 16 + (is_second ? 8 : 0) + output % 8;
}

// Returns the bytes of a matrix's weights.
inline size_t BytesOf(const DeviceMatrix& matrix) {
  if (matrix.form == IntegerForm::kNone) {
    return size_t{2} * static_cast<size_t>(matrix.inputs) * static_cast<size_t>(matrix.columns);
  }
  return IntegerMatrixBytes(matrix.form, matrix.inputs, matrix.columns);
}

// Returns the number of bfloat16 elements of a DeviceMatrix, including the slack columns.
inline size_t MatrixValues(int inputs, int columns) {
  return static_cast<size_t>(inputs) * static_cast<size_t>(columns) +
         size_t{DeviceMatrix::kSlackColumns} * DeviceMatrix::kGroup;
}

// Writes `row`, the weights of one output, to its column in the memory of a DeviceMatrix. REQUIRES:
// row.size() is a multiple of 8.
inline void PackColumn(const std::vector<uint16_t>& row, int column, int columns,
                       uint16_t* packed) {
  constexpr size_t kGroup = DeviceMatrix::kGroup;
  const auto at = static_cast<size_t>(column), stride = static_cast<size_t>(columns);
  for (size_t k = 0; k < row.size(); ++k) {
    packed[(k / kGroup * stride + at) * kGroup + k % kGroup] = row[k];
  }
}

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_DEVICE_MODEL_H_
