#include "worker/kernels/reference.h"

#include <cmath>

namespace hearth {
namespace reference {
namespace {

template <typename T>
float ChainOf(const float* x, const T* weights, int64_t inputs, int64_t width) {
  float sum = 0;
  for (int64_t k = 0; k < inputs; ++k) sum = std::fma(x[k], WidenOne(weights[k * width]), sum);
  return sum;
}

template <typename T>
float OneOutput(const float* x, const PackedWeights& weights, int64_t output) {
  const int64_t panel = output / PackedWeights::kPanelOutputs;
  return ChainOf(x, weights.Panel<T>(panel) + output % PackedWeights::kPanelOutputs,
                 weights.inputs(), weights.PanelWidth(panel));
}

}  // namespace

void ProductRow(const float* x, const PackedWeights& weights, int64_t begin, int64_t end,
                float* y) {
  for (int64_t output = begin; output < end; ++output) {
    y[output - begin] =
        weights.type() == ElementType::kFloat32    ? OneOutput<float>(x, weights, output)
        : weights.type() == ElementType::kBFloat16 ? OneOutput<BFloat16>(x, weights, output)
                                                   : OneOutput<Float16>(x, weights, output);
  }
}

}  // namespace reference
}  // namespace hearth
