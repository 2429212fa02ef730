#include "worker/kernels/row_kernels.h"

#include <algorithm>
#include <cassert>
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

// Element-wise operations; `a` is an element of the first array, `b` of the second.
struct GeluTimesEach {
  HWY_INLINE V operator()(V a, V b) const { return hn::Mul(GeluOf(a), b); }
};
struct SoftcapEach {
  HWY_INLINE V operator()(V a, V) const {
    return hn::Mul(TanhOf(hn::Div(a, Constant(cap))), Constant(cap));
  }
  float cap;
};
struct ScaleEach {
  HWY_INLINE V operator()(V a, V b) const { return hn::Mul(hn::Mul(a, Constant(inverse)), b); }
  float inverse;
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

inline float DotRow(const float* a, const float* b, int64_t count) {
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

inline void RmsNormRow(const float* x, int64_t columns, const float* scale, float epsilon,
                       float* y) {
  const float mean = DotRow(x, x, columns) / static_cast<float>(columns);
  Map(x, scale, columns, y, ScaleEach{1.0f / std::sqrt(mean + epsilon)});
}

inline void RotateRow(const float* cos, const float* sin, int64_t half, float* x) {
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

void GeluTimesRow(const float* gate, const float* up, int64_t columns, float* y) {
  Map(gate, up, columns, y, GeluTimesEach());
}

void SoftcapRow(float cap, int64_t columns, float* x) { Map(x, x, columns, x, SoftcapEach{cap}); }

// Computes x += (y * inverse) * scale. Returns the sum of squares of x, in the order of DotRow. The
// padding of the last vector stays zero unless `inverse` is not finite; in that case every element
// of the row is not finite either.
float AddScaled(const float* y, float inverse, const float* scale, int64_t columns, float* x) {
  const ScaleEach each{inverse};
  Sixteen sums;
  Clear(sums);
  for (int64_t at = 0; at < columns; at += kSums) {
    Sixteen more, scales, values;
    LoadSixteen(y + at, columns - at, more);
    LoadSixteen(scale + at, columns - at, scales);
    LoadSixteen(x + at, columns - at, values);
    for (int i = 0; i < kSumVectors; ++i) {
      values[i] = hn::Add(values[i], each(more[i], scales[i]));
    }
    StoreSixteen(values, columns - at, x + at);
    for (int i = 0; i < kSumVectors; ++i) sums[i] = hn::MulAdd(values[i], values[i], sums[i]);
  }
  return TreeSum(sums);
}

void AddNormAndNormRow(const float* y, int64_t columns, const float* y_scale, const float* x_scale,
                       float epsilon, float* x, float* normed) {
  const float count = static_cast<float>(columns);
  const float inverse = 1.0f / std::sqrt(DotRow(y, y, columns) / count + epsilon);
  const float mean = AddScaled(y, inverse, y_scale, columns, x) / count;
  Map(x, x_scale, columns, normed, ScaleEach{1.0f / std::sqrt(mean + epsilon)});
}

inline void RoundRow(const float* from, int64_t count, BFloat16* to) {
  const hn::RebindToUnsigned<D> bits;
  const hn::RebindToSigned<D> whole;
  const hn::Rebind<uint16_t, D> half;
  int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes) {
    const auto x = hn::BitCast(bits, hn::LoadU(D(), from + at));
    const auto odd = hn::And(hn::ShiftRight<16>(x), hn::Set(bits, 1));
    const auto rounded = hn::Add(x, hn::Add(odd, hn::Set(bits, 0x7fff)));
    const auto is_nan = hn::RebindMask(bits, hn::IsNaN(hn::BitCast(D(), x)));
    const auto kept = hn::IfThenElse(is_nan, hn::Or(x, hn::Set(bits, 0x400000)), rounded);
    const auto high = hn::BitCast(whole, hn::ShiftRight<16>(kept));
    hn::StoreU(hn::DemoteTo(half, high), half, reinterpret_cast<uint16_t*>(to + at));
  }
  for (; at < count; ++at) to[at] = NarrowOne(from[at]);
}

#else  // targets without vector FMA

inline void RoundRow(const float* from, int64_t count, BFloat16* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = NarrowOne(from[i]);
}
inline float DotRow(const float* a, const float* b, int64_t count) {
  return reference::Dot(a, b, count);
}
inline void RmsNormRow(const float* x, int64_t columns, const float* scale, float epsilon,
                       float* y) {
  reference::RmsNormRow(x, columns, scale, epsilon, y);
}
inline void RotateRow(const float* cos, const float* sin, int64_t half, float* x) {
  reference::RotateRow(cos, sin, half, x);
}
void GeluTimesRow(const float* gate, const float* up, int64_t columns, float* y) {
  for (int64_t i = 0; i < columns; ++i) y[i] = reference::Gelu(gate[i]) * up[i];
}
void SoftcapRow(float cap, int64_t columns, float* x) {
  for (int64_t i = 0; i < columns; ++i) x[i] = reference::Tanh(x[i] / cap) * cap;
}

void AddNormAndNormRow(const float* y, int64_t columns, const float* y_scale, const float* x_scale,
                       float epsilon, float* x, float* normed) {
  const float inverse =
      1.0f / std::sqrt(reference::Dot(y, y, columns) / static_cast<float>(columns) + epsilon);
  for (int64_t i = 0; i < columns; ++i) x[i] = x[i] + (y[i] * inverse) * y_scale[i];
  reference::RmsNormRow(x, columns, x_scale, epsilon, normed);
}

#endif  // HEARTH_KERNELS_VECTORS

void NormRotateAppendRow(const QkvShape& shape, const QkvToken& token, float* row) {
  const int64_t dim = shape.head_dim;
  for (int64_t head = 0; head < shape.heads; ++head, row += dim) {
    RmsNormRow(row, dim, shape.q_scale, shape.epsilon, row);
    RotateRow(token.cos, token.sin, dim / 2, row);
  }
  const bool narrow = shape.kv_type == ElementType::kBFloat16;
  auto* const narrow_keys = reinterpret_cast<BFloat16*>(token.keys);
  auto* const narrow_values = reinterpret_cast<BFloat16*>(token.values);
  for (int64_t head = 0; head < shape.kv_heads; ++head, row += dim) {
    const int64_t at = head * token.head_stride;
    float* keys = narrow ? row : reinterpret_cast<float*>(token.keys) + at;
    RmsNormRow(row, dim, shape.k_scale, shape.epsilon, keys);
    RotateRow(token.cos, token.sin, dim / 2, keys);
    if (narrow) RoundRow(keys, dim, narrow_keys + at);
  }
  for (int64_t head = 0; head < shape.kv_heads; ++head, row += dim) {
    const int64_t at = head * token.head_stride;
    if (narrow) {
      RoundRow(row, dim, narrow_values + at);
      for (int64_t i = at; shape.values_are_finite && i < at + dim; ++i) {
        narrow_values[i].bits = exact::FiniteBf16(narrow_values[i].bits);
      }
    } else {
      std::copy_n(row, dim, reinterpret_cast<float*>(token.values) + at);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hearth {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(GeluTimesRow);
HWY_EXPORT(SoftcapRow);
HWY_EXPORT(AddNormAndNormRow);
HWY_EXPORT(NormRotateAppendRow);

void RmsNorm(const float* x, int64_t columns, const float* scale, float epsilon, float* y) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(RmsNormRow)(x, columns, scale, epsilon, y);
}

void GeluTimes(const float* gate, const float* up, int64_t columns, float* y) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(GeluTimesRow)(gate, up, columns, y);
}

void Softcap(float cap, int64_t columns, float* x) {
  assert(cap > 0);
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(SoftcapRow)(cap, columns, x);
}

void AddNormAndNorm(const float* y, int64_t columns, const float* y_scale, const float* x_scale,
                    float epsilon, float* x, float* normed) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(AddNormAndNormRow)(y, columns, y_scale, x_scale, epsilon, x, normed);
}

void NormRotateAppend(const QkvShape& shape, const QkvToken& token, float* row) {
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(NormRotateAppendRow)(shape, token, row);
}

}  // namespace hearth
#endif  // HWY_ONCE
