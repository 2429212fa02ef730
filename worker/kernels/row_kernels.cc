#include "worker/kernels/row_kernels.h"

#include <cmath>

#include "worker/kernels/float_mode.h"
#include "worker/kernels/highway_targets.h"
#include "worker/kernels/reference.h"

// Highway compiles this file once for each target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/kernels/row_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "worker/kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {

#if HEARTH_KERNELS_VECTORS
namespace {

// What is done to each element, `a` of the one row and `b` of the other.
struct ExpEach {
  HWY_INLINE V operator()(V a, V) const { return ExpOf(a); }
};
struct TanhEach {
  HWY_INLINE V operator()(V a, V) const { return TanhOf(a); }
};
struct GeluTimesEach {
  HWY_INLINE V operator()(V a, V b) const { return hn::Mul(GeluOf(a), b); }
};
struct ScaleEach {
  HWY_INLINE V operator()(V a, V b) const { return hn::Mul(hn::Mul(a, Constant(inverse)), b); }
  float inverse;
};
struct SoftcapEach {
  HWY_INLINE V operator()(V a, V) const {
    return hn::Mul(TanhOf(hn::Div(a, Constant(cap))), Constant(cap));
  }
  float cap;
};

template <class Each>
void Map(const float* a, const float* b, int64_t count, float* to, const Each& each) {
  for (int64_t at = 0; at < count; at += kSums) {
    Sixteen values, others;
    LoadSixteen(a + at, count - at, values);
    LoadSixteen(b + at, count - at, others);
    for (int i = 0; i < kSumVectors; ++i) values[i] = each(values[i], others[i]);
    StoreSixteen(values, count - at, to + at);
  }
}

}  // namespace

float DotRow(const float* a, const float* b, int64_t count) {
  Sixteen sums;
  Clear(sums);
  for (int64_t at = 0; at < count; at += kSums) {
    Sixteen left, right;
    LoadSixteen(a + at, count - at, left);
    LoadSixteen(b + at, count - at, right);
    for (int i = 0; i < kSumVectors; ++i) sums[i] = hn::MulAdd(left[i], right[i], sums[i]);
  }
  return TreeSum(sums);
}

void RmsNormRow(const float* x, int64_t columns, const float* scale, float epsilon, float* y) {
  const float mean = DotRow(x, x, columns) / static_cast<float>(columns);
  Map(x, scale, columns, y, ScaleEach{1.0f / std::sqrt(mean + epsilon)});
}

void GeluTimesRow(const float* gate, const float* up, int64_t columns, float* y) {
  Map(gate, up, columns, y, GeluTimesEach());
}

void SoftcapRow(float cap, int64_t columns, float* x) { Map(x, x, columns, x, SoftcapEach{cap}); }

void RotateRow(const float* cos, const float* sin, int64_t half, float* x) {
  for (int64_t at = 0; at < half; at += kSums) {
    const int64_t left = half - at;
    Sixteen first, second, c, s;
    LoadSixteen(x + at, left, first);
    LoadSixteen(x + half + at, left, second);
    LoadSixteen(cos + at, left, c);
    LoadSixteen(sin + at, left, s);
    for (int i = 0; i < kSumVectors; ++i) {
      const V a = first[i], b = second[i];
      first[i] = hn::MulSub(a, c[i], hn::Mul(b, s[i]));
      second[i] = hn::MulAdd(b, c[i], hn::Mul(a, s[i]));
    }
    StoreSixteen(first, left, x + at);
    StoreSixteen(second, left, x + half + at);
  }
}

void ExpRow(const float* x, int64_t count, float* y) { Map(x, x, count, y, ExpEach()); }
void TanhRow(const float* x, int64_t count, float* y) { Map(x, x, count, y, TanhEach()); }

#else  // no FMA in vectors

float DotRow(const float* a, const float* b, int64_t count) { return reference::Dot(a, b, count); }
void RmsNormRow(const float* x, int64_t columns, const float* scale, float epsilon, float* y) {
  reference::RmsNormRow(x, columns, scale, epsilon, y);
}
void GeluTimesRow(const float* gate, const float* up, int64_t columns, float* y) {
  for (int64_t i = 0; i < columns; ++i) y[i] = reference::Gelu(gate[i]) * up[i];
}
void SoftcapRow(float cap, int64_t columns, float* x) {
  for (int64_t i = 0; i < columns; ++i) x[i] = reference::Tanh(x[i] / cap) * cap;
}
void RotateRow(const float* cos, const float* sin, int64_t half, float* x) {
  reference::RotateRow(cos, sin, half, x);
}
void ExpRow(const float* x, int64_t count, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = reference::Exp(x[i]);
}
void TanhRow(const float* x, int64_t count, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = reference::Tanh(x[i]);
}

#endif  // HEARTH_KERNELS_VECTORS

}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hearth {

HWY_EXPORT(DotRow);
HWY_EXPORT(RmsNormRow);
HWY_EXPORT(GeluTimesRow);
HWY_EXPORT(SoftcapRow);
HWY_EXPORT(RotateRow);
HWY_EXPORT(ExpRow);
HWY_EXPORT(TanhRow);

void RmsNorm(const ConstRows& x, int64_t columns, const float* scale, float epsilon,
             const Rows& y) {
  const FloatMode mode;
  for (int64_t row = 0; row < x.rows; ++row) {
    HWY_DYNAMIC_DISPATCH(RmsNormRow)(x.Row(row), columns, scale, epsilon, y.Row(row));
  }
}

void GeluTimes(const ConstRows& gate, const ConstRows& up, int64_t columns, const Rows& y) {
  const FloatMode mode;
  for (int64_t row = 0; row < gate.rows; ++row) {
    HWY_DYNAMIC_DISPATCH(GeluTimesRow)(gate.Row(row), up.Row(row), columns, y.Row(row));
  }
}

void Softcap(float cap, int64_t columns, const Rows& x) {
  const FloatMode mode;
  for (int64_t row = 0; row < x.rows; ++row) {
    HWY_DYNAMIC_DISPATCH(SoftcapRow)(cap, columns, x.Row(row));
  }
}

void Rotate(const ConstRows& cos, const ConstRows& sin, int64_t half, const Rows& x) {
  const FloatMode mode;
  for (int64_t row = 0; row < x.rows; ++row) {
    HWY_DYNAMIC_DISPATCH(RotateRow)(cos.Row(row), sin.Row(row), half, x.Row(row));
  }
}

float Dot(const float* a, const float* b, int64_t count) {
  const FloatMode mode;
  return HWY_DYNAMIC_DISPATCH(DotRow)(a, b, count);
}

void Exp(const float* x, int64_t count, float* y) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(ExpRow)(x, count, y);
}

void Tanh(const float* x, int64_t count, float* y) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(TanhRow)(x, count, y);
}

}  // namespace hearth
#endif  // HWY_ONCE
