// The step of a tensor core for one output: products of bfloat16 and a float32 sum are cut at a bit
// below the largest exponent among them, added exactly, and cut to float32. FusedRule() is the step
// that is published for Hopper's m16n8k16 and m64nNk16 (arXiv 2511.10909); the other values are the
// candidates that tensor_core_probe compares with a device. Functions only; thread-safe.
#ifndef HEARTH_BENCH_GPU_FUSED_DOT_H_
#define HEARTH_BENCH_GPU_FUSED_DOT_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace hearth {

constexpr int kStepInputs = 16;  // products of one step

enum class Cut { kTowardZero, kDown, kNearest };  // nearest: ties to even
enum class Subnormals { kKept, kNormalized, kZero };

struct FusedRule {
  int fraction_bits = 25;         // kept below the largest exponent
  Cut term = Cut::kTowardZero;    // a product or the sum so far, at the last kept bit
  Cut result = Cut::kTowardZero;  // the total, to float32
  int group = kStepInputs;        // products added at once; groups follow one another
  bool sum_apart = false;   // products are added first; the sum so far is added to their total
  bool zeros_align = true;  // a zero has the exponent -126 and may be the largest
  Subnormals subnormals = Subnormals::kKept;  // of the inputs
  bool minus_zero = false;     // the total of zeros that are all negative is -0; else +0
  bool tiny_sign = false;      // a negative total that is cut to zero is -0; else +0
  bool saturates = false;      // a total above float32 is its largest value; else infinity
  bool large_products = true;  // a product of 2^128 or more counts as it is; else as infinity
  bool tiny_results = true;    // a subnormal result is kept; else it is zero
  uint32_t nan_bits = 0x7fffffff;
};

inline float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t BitsOfFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float FloatOfBf16(uint16_t bits) { return FloatOfBits(uint32_t{bits} << 16); }

// significand * 2^(exponent - fraction bits of its format).
struct FloatParts {
  int64_t significand;
  int exponent;
};

// Of a finite value with `fraction` bits below the leading one, given as its bits.
inline FloatParts PartsOf(uint32_t bits, int fraction, Subnormals subnormals) {
  const int exponent = static_cast<int>(bits >> fraction & 255);
  int64_t significand = bits & ((uint32_t{1} << fraction) - 1);
  FloatParts parts{significand, -126};
  if (exponent != 0) {
    parts = {significand | int64_t{1} << fraction, exponent - 127};
  } else if (significand != 0 && subnormals == Subnormals::kZero) {
    parts.significand = 0;
  } else if (significand != 0 && subnormals == Subnormals::kNormalized) {
    const int up = fraction - (63 - __builtin_clzll(static_cast<uint64_t>(significand)));
    parts = {significand << up, -126 - up};
  }
  if (bits >> (fraction + 8) & 1) parts.significand = -parts.significand;
  return parts;
}

// value / 2^right as an integer. REQUIRES: |value| < 2^61, and value * 2^-right fits where right <
// 0.
inline int64_t CutRight(int64_t value, int right, Cut cut) {
  if (right <= 0) return value * (int64_t{1} << -right);
  if (right > 62) right = 62;
  const int64_t down = value >> right;
  const int64_t rest = value - down * (int64_t{1} << right), half = int64_t{1} << (right - 1);
  if (cut == Cut::kTowardZero) return down + (value < 0 && rest != 0 ? 1 : 0);
  if (cut == Cut::kDown) return down;
  return down + (rest > half || (rest == half && (down & 1)) ? 1 : 0);
}

// sum * 2^unit as float32.
inline float FloatOfSum(int64_t sum, int unit, const FusedRule& rule) {
  if (sum == 0) return 0.0f;
  const int top = 63 - __builtin_clzll(static_cast<uint64_t>(sum < 0 ? -sum : sum));
  int drop = top - 23;
  if (drop < -149 - unit) drop = -149 - unit;  // a subnormal result
  const int64_t cut = CutRight(sum, drop, rule.result);
  if (cut == 0) return sum < 0 && rule.tiny_sign ? -0.0f : 0.0f;
  const float value = std::ldexp(static_cast<float>(cut), unit + drop);
  if (!rule.tiny_results && std::fabs(value) < std::numeric_limits<float>::min()) {
    return std::copysign(0.0f, rule.tiny_sign ? value : 0.0f);
  }
  if (std::isinf(value) && rule.saturates) {
    return std::copysign(std::numeric_limits<float>::max(), value);
  }
  return value;
}

// Whether NaNs or infinities decide the result; then *result is it.
inline bool SpecialResult(const uint16_t* a, const uint16_t* b, const float* c, int count,
                          const FusedRule& rule, float* result) {
  bool special = (c != nullptr && !std::isfinite(*c)) || !rule.large_products;
  for (int i = 0; i < count; ++i) {
    special |= (a[i] & 0x7f80) == 0x7f80 || (b[i] & 0x7f80) == 0x7f80;
  }
  if (!special) return false;
  bool nan = c != nullptr && std::isnan(*c);
  bool plus = c != nullptr && std::isinf(*c) && *c > 0;
  bool minus = c != nullptr && std::isinf(*c) && *c < 0;
  for (int i = 0; i < count; ++i) {
    const float x = FloatOfBf16(a[i]), y = FloatOfBf16(b[i]);
    if (std::isnan(x) || std::isnan(y)) nan = true;
    const bool infinite = std::isinf(x) || std::isinf(y);
    if (infinite && (x == 0 || y == 0)) nan = true;
    if (!infinite && (rule.large_products || !std::isinf(x * y))) continue;
    (std::signbit(x) == std::signbit(y) ? plus : minus) = true;
  }
  if (!nan && !plus && !minus) return false;
  const float infinity = std::numeric_limits<float>::infinity();
  *result = nan || (plus && minus) ? FloatOfBits(rule.nan_bits) : plus ? infinity : -infinity;
  return true;
}

// `count` products (at most kStepInputs) and, unless it is null, *c, added at once.
inline float FusedSum(const uint16_t* a, const uint16_t* b, const float* c, int count,
                      const FusedRule& rule) {
  float special;
  if (SpecialResult(a, b, c, count, rule, &special)) return special;
  constexpr int kNone = -1000;
  FloatParts terms[kStepInputs], sum{0, kNone};
  int largest = kNone;
  bool all_minus = true;
  for (int i = 0; i < count; ++i) {
    const FloatParts x = PartsOf(a[i], 7, rule.subnormals), y = PartsOf(b[i], 7, rule.subnormals);
    terms[i] = {x.significand * y.significand, x.exponent + y.exponent};
    all_minus &= ((a[i] ^ b[i]) & 0x8000) != 0;
    if ((rule.zeros_align || terms[i].significand != 0) && terms[i].exponent > largest) {
      largest = terms[i].exponent;
    }
  }
  if (c != nullptr) {
    sum = PartsOf(BitsOfFloat(*c), 23, rule.subnormals);
    all_minus &= std::signbit(*c);
    if ((rule.zeros_align || sum.significand != 0) && sum.exponent > largest) {
      largest = sum.exponent;
    }
  }
  const int unit = largest - rule.fraction_bits;
  int64_t total =
      sum.significand == 0 ? 0 : CutRight(sum.significand, unit + 23 - sum.exponent, rule.term);
  bool zeros = sum.significand == 0;
  for (int i = 0; i < count; ++i) {
    if (terms[i].significand == 0) continue;
    total += CutRight(terms[i].significand, unit + 14 - terms[i].exponent, rule.term);
    zeros = false;
  }
  if (zeros) return all_minus && rule.minus_zero ? -0.0f : 0.0f;
  return FloatOfSum(total, unit, rule);
}

// c and the 16 products of a and b.
inline float FusedDot(const uint16_t* a, const uint16_t* b, float c,
                      const FusedRule& rule = FusedRule()) {
  for (int i = 0; i < kStepInputs; i += rule.group) {
    if (!rule.sum_apart) {
      c = FusedSum(a + i, b + i, &c, rule.group, rule);
      continue;
    }
    const float products = FusedSum(a + i, b + i, nullptr, rule.group, rule);
    c = FusedSum(nullptr, nullptr, &c, 0, rule) + products;  // float32's own addition
  }
  return c;
}

// The ascending chain of an output: inputs / 16 steps.
inline float FusedChain(const uint16_t* a, const uint16_t* b, float c, int inputs,
                        const FusedRule& rule = FusedRule()) {
  for (int k = 0; k < inputs; k += kStepInputs) c = FusedDot(a + k, b + k, c, rule);
  return c;
}

}  // namespace hearth

#endif  // HEARTH_BENCH_GPU_FUSED_DOT_H_
