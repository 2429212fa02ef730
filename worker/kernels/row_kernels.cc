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

#else  // no FMA in vectors

void GeluTimesRow(const float* gate, const float* up, int64_t columns, float* y) {
  for (int64_t i = 0; i < columns; ++i) y[i] = reference::Gelu(gate[i]) * up[i];
}
void SoftcapRow(float cap, int64_t columns, float* x) {
  for (int64_t i = 0; i < columns; ++i) x[i] = reference::Tanh(x[i] / cap) * cap;
}

#endif  // HEARTH_KERNELS_VECTORS

}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hearth {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(GeluTimesRow);
HWY_EXPORT(SoftcapRow);

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

}  // namespace hearth
#endif  // HWY_ONCE
