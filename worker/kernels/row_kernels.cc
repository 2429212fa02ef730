#include "worker/kernels/row_kernels.h"

#include <cassert>

#include "worker/kernels/float_mode.h"
#include "worker/kernels/highway_targets.h"
#include "worker/kernels/reference.h"

// Highway compiles this file once for each target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/kernels/row_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "worker/kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {

#if HEARTH_KERNELS_VECTORS
namespace {

// The operations on each element, `a` of the one row and `b` of the other.
struct ExpEach {
  HWY_INLINE V operator()(V a, V) const { return ExpOf(a); }
};
struct TanhEach {
  HWY_INLINE V operator()(V a, V) const { return TanhOf(a); }
};
struct GeluTimesEach {
  HWY_INLINE V operator()(V a, V b) const { return hn::Mul(GeluOf(a), b); }
};
struct SoftcapEach {
  HWY_INLINE V operator()(V a, V) const {
    return hn::Mul(TanhOf(hn::Div(a, Constant(cap))), Constant(cap));
  }
  float cap;
};

}  // namespace

void GeluTimesRow(const float* gate, const float* up, int64_t columns, float* y) {
  Map(gate, up, columns, y, GeluTimesEach());
}

void SoftcapRow(float cap, int64_t columns, float* x) { Map(x, x, columns, x, SoftcapEach{cap}); }

void ExpRow(const float* x, int64_t count, float* y) { Map(x, x, count, y, ExpEach()); }
void TanhRow(const float* x, int64_t count, float* y) { Map(x, x, count, y, TanhEach()); }

#else  // no FMA in vectors

void GeluTimesRow(const float* gate, const float* up, int64_t columns, float* y) {
  for (int64_t i = 0; i < columns; ++i) y[i] = reference::Gelu(gate[i]) * up[i];
}
void SoftcapRow(float cap, int64_t columns, float* x) {
  for (int64_t i = 0; i < columns; ++i) x[i] = reference::Tanh(x[i] / cap) * cap;
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
  assert(cap > 0);
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
