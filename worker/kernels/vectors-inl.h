// Vector code shared by the row kernels: sixteen partial sums and their tree sum, exp and tanh.
// Private to worker/kernels; included once for each target, after Highway. reference.cc has the
// same functions in plain C++.
#if defined(HEARTH_WORKER_KERNELS_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEARTH_WORKER_KERNELS_VECTORS_INL_H_
#undef HEARTH_WORKER_KERNELS_VECTORS_INL_H_
#else
#define HEARTH_WORKER_KERNELS_VECTORS_INL_H_
#endif

#include <cstdint>

#include "worker/kernels/functions.h"
#include "worker/kernels/widen-inl.h"

#if HEARTH_KERNELS_VECTORS
HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {

constexpr int kLanes = HWY_TARGET == HWY_AVX3 ? 16 : 8;
constexpr int kSums = 16;  // number of partial sums of a reduction, independent of the vector width
constexpr int kSumVectors = kSums / kLanes;
using D = hn::FixedTag<float, kLanes>;
using V = hn::Vec<D>;

// Sixteen floats in vectors. If they are partial sums, float j adds the elements i with i % 16 == j
// in ascending order.
using Sixteen = V[kSumVectors];

HWY_INLINE void Clear(Sixteen& sums) {
  for (int i = 0; i < kSumVectors; ++i) sums[i] = hn::Zero(D());
}

// Returns the first two steps of the tree sum: (j, j + 8), then (j, j + 4).
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> FourSums(const Sixteen& sums) {
#if HWY_TARGET == HWY_AVX3
  const hn::FixedTag<float, 8> half;
  const auto eight = hn::Add(hn::LowerHalf(half, sums[0]), hn::UpperHalf(half, sums[0]));
#else
  const auto eight = hn::Add(sums[0], sums[1]);
#endif
  const hn::FixedTag<float, 4> quarter;
  return hn::Add(hn::LowerHalf(quarter, eight), hn::UpperHalf(quarter, eight));
}

// Returns the complete tree sum: FourSums, then (j, j + 2) and (j, j + 1).
HWY_INLINE float TreeSum(const Sixteen& sums) {
  auto four = FourSums(sums);
  four = hn::Add(four, hn::Shuffle1032(four));
  return hn::GetLane(hn::Add(four, hn::Shuffle2301(four)));
}

// Loads up to 16 elements and pads with +0; adding +0 to a partial sum does not change its bits.
template <typename T>
HWY_INLINE void LoadSixteen(const T* from, int64_t count, Sixteen& to) {
  if (count >= kSums) {
    for (int i = 0; i < kSumVectors; ++i) to[i] = Widen(D(), from + i * kLanes);
    return;
  }
  T padded[kSums] = {};
  for (int64_t i = 0; i < count; ++i) padded[i] = from[i];
  for (int i = 0; i < kSumVectors; ++i) to[i] = Widen(D(), padded + i * kLanes);
}

HWY_INLINE void StoreSixteen(const Sixteen& values, int64_t count, float* to) {
  if (count >= kSums) {
    for (int i = 0; i < kSumVectors; ++i) hn::StoreU(values[i], D(), to + i * kLanes);
    return;
  }
  float padded[kSums];
  for (int i = 0; i < kSumVectors; ++i) hn::StoreU(values[i], D(), padded + i * kLanes);
  for (int64_t i = 0; i < count; ++i) to[i] = padded[i];
}

HWY_INLINE V Constant(float value) { return hn::Set(D(), value); }

HWY_INLINE V ExpOf(V x) {
  const D d;
  const hn::RebindToSigned<D> whole;
  const V shifted = hn::MulAdd(x, Constant(kExpLog2e), Constant(kExpShift));
  const V n = hn::Sub(shifted, Constant(kExpShift));
  V r = hn::MulAdd(n, Constant(-kExpLn2High), x);
  r = hn::MulAdd(n, Constant(-kExpLn2Low), r);
  V p = Constant(kExpTerms[0]);
  for (int i = 1; i < kExpTermCount; ++i) p = hn::MulAdd(p, r, Constant(kExpTerms[i]));
  const V y = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), Constant(1));
  const auto power = hn::ShiftLeft<23>(hn::BitCast(whole, shifted));
  V result = hn::BitCast(d, hn::Add(hn::BitCast(whole, y), power));
  result = hn::IfThenElse(hn::Lt(x, Constant(kExpLowest)), hn::Zero(d), result);
  result = hn::IfThenElse(hn::Gt(x, Constant(kExpHighest)), Constant(kInfinity), result);
  return hn::IfThenElse(hn::Ne(x, x), x, result);
}

HWY_INLINE V TanhOf(V x) {
  const D d;
  const V size = hn::Abs(x), square = hn::Mul(x, x);
  V p = Constant(kTanhTerms[0]);
  for (int i = 1; i < kTanhTermCount; ++i) p = hn::MulAdd(p, square, Constant(kTanhTerms[i]));
  const V near = hn::MulAdd(hn::Mul(p, square), x, x);
  const V e = ExpOf(hn::Add(size, size));
  const V far = hn::Sub(Constant(1), hn::Div(Constant(2), hn::Add(e, Constant(1))));
  const V sign = hn::And(x, hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D>(), 0x80000000u)));
  return hn::IfThenElse(hn::Lt(size, Constant(kTanhNear)), near, hn::Or(far, sign));
}

// Returns x * (1 + tanh(u)) / 2 with u = sqrt(2 / pi) * (x + 0.044715 x^3), computed as x / (1 +
// exp(-2 u)).
HWY_INLINE V GeluOf(V x) {
  const V cubic = hn::MulAdd(hn::Mul(hn::Mul(x, x), Constant(kGeluCubic)), x, x);
  const V e = ExpOf(hn::Mul(cubic, Constant(kGeluScale)));
  return hn::Div(x, hn::Add(e, Constant(1)));
}

}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();
#endif  // HEARTH_KERNELS_VECTORS

#endif  // HEARTH_WORKER_KERNELS_VECTORS_INL_H_
