// Scalar operations for the reference kernels and the device programs: IEEE operations rounded to
// nearest, without contraction, and exp, tanh and GELU built from them. They define the bits of all
// kernels. g++ compiles them with -ffp-contract=off.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_KERNELS_FUNCTIONS_H_
#define HEARTH_WORKER_KERNELS_FUNCTIONS_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__CUDACC__)
#define HEARTH_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define HEARTH_HOST_DEVICE inline
#endif

namespace hearth {

// Constants of exp, tanh and GELU. All instruction sets and the reference use the same constants.
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// exp(x) = 2^n exp(r), where n is the integer nearest to x / ln 2. Adding kExpShift rounds to n and
// leaves n in the lowest bits.
inline constexpr float kExpLog2e = 0x1.715476p+0f, kExpShift = 0x1.8p+23f;
inline constexpr float kExpLn2High = 0x1.62e4p-1f, kExpLn2Low = 0x1.7f7d1cp-20f;
// exp(r) = 1 + r + r^2 (...), the highest power first (Cephes, expf).
inline constexpr int kExpTermCount = 6;
inline constexpr float kExpTerms[kExpTermCount] = {1.9875691500e-4f, 1.3981999507e-3f,
                                                   8.3334519073e-3f, 4.1665795894e-2f,
                                                   1.6666665459e-1f, 5.0000001201e-1f};
// exp(x) is 0 for x < kExpLowest, because the exact result would be subnormal or nearly subnormal;
// it is infinity for x > kExpHighest.
inline constexpr float kExpLowest = -87.0f, kExpHighest = 0x1.62e42ep+6f;

// tanh(x) = x + x^3 (...) for |x| < kTanhNear (Cephes, tanhf), else computed from exp(2 |x|).
inline constexpr float kTanhNear = 0.625f;
inline constexpr int kTanhTermCount = 5;
inline constexpr float kTanhTerms[kTanhTermCount] = {-5.70498872745e-3f, 2.06390887954e-2f,
                                                     -5.37397155531e-2f, 1.33314422036e-1f,
                                                     -3.33332819422e-1f};

inline constexpr float kGeluCubic = 0.044715f;
inline constexpr float kGeluScale = -1.5957691216057308f;  // -2 sqrt(2 / pi)

namespace exact {

#if defined(__CUDA_ARCH__)
__device__ __forceinline__ float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ float Mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float Add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float Sub(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ float Div(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float Sqrt(float a) { return __fsqrt_rn(a); }
__device__ __forceinline__ uint32_t BitsOf(float a) { return __float_as_uint(a); }
__device__ __forceinline__ float FloatOf(uint32_t bits) { return __uint_as_float(bits); }
#else
HEARTH_HOST_DEVICE float Fma(float a, float b, float c) { return std::fma(a, b, c); }
HEARTH_HOST_DEVICE float Mul(float a, float b) { return a * b; }
HEARTH_HOST_DEVICE float Add(float a, float b) { return a + b; }
HEARTH_HOST_DEVICE float Sub(float a, float b) { return a - b; }
HEARTH_HOST_DEVICE float Div(float a, float b) { return a / b; }
HEARTH_HOST_DEVICE float Sqrt(float a) { return std::sqrt(a); }
HEARTH_HOST_DEVICE uint32_t BitsOf(float a) {
  uint32_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  return bits;
}
HEARTH_HOST_DEVICE float FloatOf(uint32_t bits) {
  float a;
  std::memcpy(&a, &bits, sizeof a);
  return a;
}
#endif

// Returns `bits` of a bfloat16, where infinity becomes the largest finite number of its sign, and
// NaN the largest finite number.
HEARTH_HOST_DEVICE uint16_t FiniteBf16(uint16_t bits) {
  constexpr uint16_t kLargest = 0x7f7f;
  if ((bits & 0x7f80) != 0x7f80) return bits;
  return (bits & 0x7f) != 0 ? kLargest : static_cast<uint16_t>(kLargest | (bits & 0x8000));
}

// Returns the greater of a and b. If b is NaN, returns a.
HEARTH_HOST_DEVICE float Max(float a, float b) { return a < b ? b : a; }

// Evaluates the polynomial kExpTerms or kTanhTerms with Horner's rule, beginning at term kFrom.
template <int kFrom>
HEARTH_HOST_DEVICE float ExpTerms(float r, float p) {
  if constexpr (kFrom == kExpTermCount) {
    return p;
  } else {
    constexpr float kTerm = kExpTerms[kFrom];
    return ExpTerms<kFrom + 1>(r, Fma(p, r, kTerm));
  }
}
template <int kFrom>
HEARTH_HOST_DEVICE float TanhTerms(float square, float p) {
  if constexpr (kFrom == kTanhTermCount) {
    return p;
  } else {
    constexpr float kTerm = kTanhTerms[kFrom];
    return TanhTerms<kFrom + 1>(square, Fma(p, square, kTerm));
  }
}

// Has no branches, so that successive calls in one thread overlap in the pipeline.
HEARTH_HOST_DEVICE float Exp(float x) {
  constexpr float kFirst = kExpTerms[0];
  const float shifted = Fma(x, kExpLog2e, kExpShift);
  const float n = Sub(shifted, kExpShift);
  const float r = Fma(n, -kExpLn2Low, Fma(n, -kExpLn2High, x));
  const float y = Add(Fma(ExpTerms<1>(r, kFirst), Mul(r, r), r), 1.0f);
  const float scaled = FloatOf(BitsOf(y) + (BitsOf(shifted) << 23));
  const float low = x < kExpLowest ? 0.0f : scaled;
  const float high = x > kExpHighest ? kInfinity : low;
  return x != x ? x : high;
}

HEARTH_HOST_DEVICE float Tanh(float x) {
  const float size = FloatOf(BitsOf(x) & 0x7fffffffu);
  if (size < kTanhNear) {
    constexpr float kFirst = kTanhTerms[0];
    const float square = Mul(x, x);
    return Fma(Mul(TanhTerms<1>(square, kFirst), square), x, x);
  }
  const float far = Sub(1.0f, Div(2.0f, Add(Exp(Add(size, size)), 1.0f)));
  return FloatOf((BitsOf(far) & 0x7fffffffu) | (BitsOf(x) & 0x80000000u));
}

HEARTH_HOST_DEVICE float Gelu(float x) {
  const float cubic = Fma(Mul(Mul(x, x), kGeluCubic), x, x);
  return Div(x, Add(Exp(Mul(cubic, kGeluScale)), 1.0f));
}

// Adds sixteen partial sums in a tree: (j, j + 8), then (j, j + 4), (j, j + 2) and (j, j + 1).
HEARTH_HOST_DEVICE float TreeSum(const float* sums) {
  float left[8];
  for (int j = 0; j < 8; ++j) left[j] = Add(sums[j], sums[j + 8]);
  for (int j = 0; j < 4; ++j) left[j] = Add(left[j], left[j + 4]);
  for (int j = 0; j < 2; ++j) left[j] = Add(left[j], left[j + 2]);
  return Add(left[0], left[1]);
}

}  // namespace exact
}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_FUNCTIONS_H_
