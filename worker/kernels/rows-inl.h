// One row each of the kernels that several files use. Private to worker/kernels; included once for
// each target, after Highway.
#if defined(HEARTH_WORKER_KERNELS_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEARTH_WORKER_KERNELS_ROWS_INL_H_
#undef HEARTH_WORKER_KERNELS_ROWS_INL_H_
#else
#define HEARTH_WORKER_KERNELS_ROWS_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "worker/kernels/reference.h"
#include "worker/kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {

#if HEARTH_KERNELS_VECTORS

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

#else  // no FMA in vectors

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

#endif  // HEARTH_KERNELS_VECTORS

}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();

#endif  // HEARTH_WORKER_KERNELS_ROWS_INL_H_
