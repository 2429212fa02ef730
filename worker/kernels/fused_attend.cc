#include "worker/kernels/fused_attend.h"

#include <algorithm>

#include "worker/kernels/functions.h"
#include "worker/kernels/fused_tile.h"

namespace hearth {
namespace {

constexpr int64_t kRowsMax = AttendShape::kSharersMax;

uint16_t Narrow(float value) { return NarrowOne(value).bits; }
uint16_t Narrow(BFloat16 value) { return value.bits; }

// bfloat16 values of 16 keys and 16 columns; a key outside `any` has zeros.
template <typename T>
void Gather(const FusedKeys<T>& from, int64_t key, int64_t column, bool by_column,
            FusedTile::Weights& to) {
  for (int64_t k = 0; k < kStepInputs; ++k) {
    const T* row = from.data + (key + k) * from.head_dim + column;
    const bool is_seen = key + k >= from.any.begin && key + k < from.any.end;
    for (int64_t i = 0; i < kStepInputs; ++i) {
      const uint16_t bits = is_seen ? Narrow(row[i]) : uint16_t{0};
      (by_column ? to[i][k] : to[k][i]) = by_column ? exact::FiniteBf16(bits) : bits;
    }
  }
}

}  // namespace

template <typename T>
void FusedScores(const float* const* queries, int64_t rows, const FusedKeys<T>& keys, int64_t begin,
                 int64_t end, float* const* scores) {
  uint16_t narrow[kRowsMax][AttendShape::kHeadDimMax];
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < keys.head_dim; ++i) narrow[row][i] = Narrow(queries[row][i]);
  }
  for (int64_t key = begin; key < end; key += FusedTile::kOutputs) {
    float sums[kRowsMax][FusedTile::kOutputs] = {};
    for (int64_t column = 0; column < keys.head_dim; column += kStepInputs) {
      FusedTile::Weights weights;
      Gather(keys, key, column, false, weights);
      const FusedTile tile(weights);
      for (int64_t row = 0; row < rows; ++row) tile.AddTo(narrow[row] + column, sums[row]);
    }
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(sums[row], FusedTile::kOutputs, scores[row] + key);
    }
  }
}

float RoundWeights(int64_t begin, int64_t end, float* weights) {
  float sums[16] = {};
  for (int64_t key = begin; key < end; ++key) {
    weights[key] = WidenOne(NarrowOne(weights[key]));
    sums[key % 16] += weights[key];
  }
  return exact::TreeSum(sums);
}

template <typename T>
void FusedValues(const float* const* weights, const SeenKeys* seen, int64_t rows,
                 const FusedKeys<T>& values, float* const* outputs) {
  for (int64_t key = values.any.begin / kStepInputs * kStepInputs; key < values.any.end;
       key += kStepInputs) {
    uint16_t narrow[kRowsMax][kStepInputs];
    bool sees[kRowsMax];
    for (int64_t row = 0; row < rows; ++row) {
      sees[row] = seen[row].begin < key + kStepInputs && seen[row].end > key;
      for (int64_t i = 0; sees[row] && i < kStepInputs; ++i) {
        narrow[row][i] = Narrow(weights[row][key + i]);
      }
    }
    for (int64_t column = 0; column < values.head_dim; column += FusedTile::kOutputs) {
      FusedTile::Weights of_columns;
      Gather(values, key, column, true, of_columns);
      const FusedTile tile(of_columns);
      for (int64_t row = 0; row < rows; ++row) {
        if (sees[row]) tile.AddTo(narrow[row], outputs[row] + column);
      }
    }
  }
}

template void FusedScores(const float* const*, int64_t, const FusedKeys<float>&, int64_t, int64_t,
                          float* const*);
template void FusedScores(const float* const*, int64_t, const FusedKeys<BFloat16>&, int64_t,
                          int64_t, float* const*);
template void FusedValues(const float* const*, const SeenKeys*, int64_t, const FusedKeys<float>&,
                          float* const*);
template void FusedValues(const float* const*, const SeenKeys*, int64_t, const FusedKeys<BFloat16>&,
                          float* const*);

}  // namespace hearth
