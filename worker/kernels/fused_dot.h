// The k16 step of Hopper's tensor cores for one output: a float32 sum plus 16 products of bfloat16.
// mma.sync m16n8k16 and wgmma m64nNk16 compute these bits (docs/dev/decisions.md, D61). This file
// defines the bits of Arithmetic::kBFloat16.
// Functions only; thread-safe.
//
// With finite inputs:
//   1. A product of significands has 14 fraction bits, the sum 23; neither is normalized. An
//      exponent is that of the inputs: for a product the sum of both, for a subnormal -126.
//   2. The largest exponent is taken over the terms that are not zero, and is at least -133.
//   3. Each term is cut toward zero at the bit 2^(largest - 25). The 17 terms are added exactly.
//   4. The total is cut toward zero to float32. Subnormals are kept, and 2^128 or more is infinity.
//      A total of zero is +0, also if it was cut to zero or all terms are -0.
// A NaN input, infinity times zero and infinities of both signs give the NaN 0x7fffffff; otherwise
// an infinite input gives infinity. A finite product of 2^128 or more counts with its value.
#ifndef HEARTH_WORKER_KERNELS_FUSED_DOT_H_
#define HEARTH_WORKER_KERNELS_FUSED_DOT_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "worker/kernels/base/element.h"

namespace hearth {

constexpr int kStepInputs = 16;      // number of products in one step
constexpr int kStepBits = 25;        // number of bits kept below the largest exponent
constexpr int kStepExponent = -133;  // smallest value of the largest exponent
constexpr uint32_t kStepNan = 0x7fffffff;

inline uint32_t BitsOfFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float FloatOfBf16(uint16_t bits) { return FloatOfBits(uint32_t{bits} << 16); }

// Returns the result of a step with an infinite or NaN input. REQUIRES: at least one input is
// infinite or NaN.
inline float SpecialDot(const uint16_t* a, const uint16_t* b, float c) {
  bool nan = std::isnan(c), plus = std::isinf(c) && c > 0, minus = std::isinf(c) && c < 0;
  for (int i = 0; i < kStepInputs; ++i) {
    const float x = FloatOfBf16(a[i]), y = FloatOfBf16(b[i]);
    nan |= std::isnan(x) || std::isnan(y);
    if (!std::isinf(x) && !std::isinf(y)) continue;
    nan |= x == 0 || y == 0;
    (std::signbit(x) == std::signbit(y) ? plus : minus) = true;
  }
  if (nan || (plus && minus)) return FloatOfBits(kStepNan);
  const float infinity = std::numeric_limits<float>::infinity();
  return plus ? infinity : -infinity;
}

// Returns total * 2^unit, truncated toward zero to float32. REQUIRES: unit >= kStepExponent -
// kStepBits.
inline float CutToFloat(int64_t total, int unit) {
  if (total == 0) return 0.0f;
  const uint64_t size = static_cast<uint64_t>(total < 0 ? -total : total);
  int drop = 40 - __builtin_clzll(size);  // number of low bits to drop, so that 24 bits remain
  if (drop < -149 - unit) drop = -149 - unit;
  const uint64_t kept = drop < 0 ? size << -drop : size >> drop;
  if (kept == 0) return 0.0f;
  // Adding the leading bit of a normal significand increments the exponent field by 1.
  uint32_t bits = static_cast<uint32_t>(kept);
  bits += static_cast<uint32_t>(unit + drop + 149) << 23;
  if (unit + drop > 104) bits = 0x7f800000;  // the value is 2^128 or more: infinity
  return FloatOfBits(bits | (total < 0 ? 0x80000000 : 0));
}

// Returns c plus the sum of the 16 products a[i] * b[i], with the bits of a tensor-core step.
inline float FusedDot(const uint16_t* a, const uint16_t* b, float c) {
  // Exponents of products still contain the biases of both factors, 2 * 127 = 254.
  constexpr int kBiases = 254;
  uint32_t products[kStepInputs];
  int exponents[kStepInputs];
  const uint32_t c_bits = BitsOfFloat(c);
  const int c_field = static_cast<int>(c_bits >> 23 & 255);
  const uint32_t c_size = (c_bits & 0x7fffff) | (c_field != 0 ? 0x800000 : 0);
  const int c_exponent = (c_field != 0 ? c_field : 1) + kBiases - 127;
  int largest = kStepExponent + kBiases;
  if (c_size != 0 && c_exponent > largest) largest = c_exponent;
  bool special = c_field == 255;
  for (int i = 0; i < kStepInputs; ++i) {
    const int x = a[i] >> 7 & 255, y = b[i] >> 7 & 255;
    special |= x == 255 || y == 255;
    const uint32_t x_size = (a[i] & 127) | (x != 0 ? 128 : 0);
    const uint32_t y_size = (b[i] & 127) | (y != 0 ? 128 : 0);
    products[i] = x_size * y_size;
    exponents[i] = (x != 0 ? x : 1) + (y != 0 ? y : 1);
    const int counted = products[i] != 0 ? exponents[i] : 0;
    largest = counted > largest ? counted : largest;
  }
  if (special) return SpecialDot(a, b, c);
  // The lowest bit of a product is 11 bits above the cut, the lowest bit of the sum 2 bits above.
  // Shifted right by 31, nothing of them is left.
  int64_t total = 0;
  for (int i = 0; i < kStepInputs; ++i) {
    int right = largest - exponents[i];
    right = right < 0 || right > 31 ? 31 : right;  // a negative shift count occurs only for a zero
    const int32_t size = static_cast<int32_t>(products[i] << (kStepBits - 14) >> right);
    total += (a[i] ^ b[i]) & 0x8000 ? -size : size;
  }
  int right = largest - c_exponent;
  right = right < 0 || right > 31 ? 31 : right;
  const int32_t size = static_cast<int32_t>(c_size << (kStepBits - 23) >> right);
  total += c_bits >> 31 ? -size : size;
  return CutToFloat(total, largest - kBiases - kStepBits);
}

// Returns the sum over all inputs of one output: inputs / 16 steps, in ascending order of inputs.
inline float FusedChain(const uint16_t* a, const uint16_t* b, float c, int inputs) {
  for (int k = 0; k < inputs; k += kStepInputs) c = FusedDot(a + k, b + k, c);
  return c;
}

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_FUSED_DOT_H_
