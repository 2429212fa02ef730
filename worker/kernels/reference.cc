#include "worker/kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "worker/kernels/function_constants.h"

namespace hearth {
namespace reference {
namespace {

template <typename T>
float OneOutput(const float* x, const PackedWeights& weights, int64_t output) {
  const int64_t panel = output / PackedWeights::kPanelOutputs;
  const T* from = weights.Panel<T>(panel);
  float sum = 0;
  for (int64_t k = 0; k < weights.inputs(); ++k) {
    const int64_t at = weights.IndexInPanel(panel, k, output % PackedWeights::kPanelOutputs);
    sum = std::fma(x[k], WidenOne(from[at]), sum);
  }
  return sum;
}

// A chain for each group, which its scale joins to the sum.
float OneInt8Output(const float* x, const PackedWeights& weights, int64_t output) {
  constexpr int64_t kGroup = PackedWeights::kGroupInputs;
  const int64_t panel = output / PackedWeights::kPanelOutputs;
  const int64_t n = output % PackedWeights::kPanelOutputs;
  float sum = 0;
  for (int64_t begin = 0; begin < weights.inputs(); begin += kGroup) {
    const Int8* from = weights.Panel<Int8>(panel, begin);
    float chain = 0;
    for (int64_t k = begin; k < std::min(begin + kGroup, weights.inputs()); ++k) {
      chain = std::fma(x[k], WidenOne(from[weights.IndexInPanel(panel, k, n)]), chain);
    }
    sum = std::fma(chain, weights.Scale(panel, begin, n), sum);
  }
  return sum;
}

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace

void ProductRow(const float* x, const PackedWeights& weights, int64_t begin, int64_t end,
                float* y) {
  for (int64_t output = begin; output < end; ++output) {
    y[output - begin] =
        weights.type() == ElementType::kInt8       ? OneInt8Output(x, weights, output)
        : weights.type() == ElementType::kFloat32  ? OneOutput<float>(x, weights, output)
        : weights.type() == ElementType::kBFloat16 ? OneOutput<BFloat16>(x, weights, output)
                                                   : OneOutput<Float16>(x, weights, output);
  }
}

float TreeSum(const float (&sums)[16]) {
  float left[16];
  std::memcpy(left, sums, sizeof left);
  for (int step = 8; step > 0; step /= 2) {
    for (int j = 0; j < step; ++j) left[j] = left[j] + left[j + step];
  }
  return left[0];
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

float Exp(float x) {
  if (x != x) return x;
  if (x < kExpLowest) return 0;
  if (x > kExpHighest) return kInfinity;
  const float shifted = std::fma(x, kExpLog2e, kExpShift);
  const float n = shifted - kExpShift;
  const float r = std::fma(n, -kExpLn2Low, std::fma(n, -kExpLn2High, x));
  float p = kExpTerms[0];
  for (int i = 1; i < kExpTermCount; ++i) p = std::fma(p, r, kExpTerms[i]);
  const float y = std::fma(p, r * r, r) + 1.0f;
  return FloatOfBits(BitsOf(y) + (BitsOf(shifted) << 23));
}

float Tanh(float x) {
  const float size = std::fabs(x);
  if (size < kTanhNear) {
    const float square = x * x;
    float p = kTanhTerms[0];
    for (int i = 1; i < kTanhTermCount; ++i) p = std::fma(p, square, kTanhTerms[i]);
    return std::fma(p * square, x, x);
  }
  return std::copysign(1.0f - 2.0f / (Exp(size + size) + 1.0f), x);
}

float Gelu(float x) {
  const float cubic = std::fma(x * x * kGeluCubic, x, x);
  return x / (Exp(cubic * kGeluScale) + 1.0f);
}

}  // namespace reference
}  // namespace hearth
