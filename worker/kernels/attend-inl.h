// The inner loops of attention: scores of a few queries with four keys, chains of a few rows over a
// run of keys, and the floats of keys or values that are quantized. Private to worker/kernels;
// included once for each target, after Highway.
#if defined(HEARTH_WORKER_KERNELS_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEARTH_WORKER_KERNELS_ATTEND_INL_H_
#undef HEARTH_WORKER_KERNELS_ATTEND_INL_H_
#else
#define HEARTH_WORKER_KERNELS_ATTEND_INL_H_
#endif

#include <cstdint>

#include "worker/kernels/base/element.h"
#include "worker/kernels/quantized/quantized_plane.h"
#include "worker/kernels/vectors-inl.h"

#if HEARTH_KERNELS_VECTORS
HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {

constexpr int kScoreRows = HWY_TARGET == HWY_AVX3 ? 4 : 1, kScoreKeys = 4;
constexpr int kValueRows = 4, kValueVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;

using Quarter = hn::FixedTag<float, 4>;

// The trees of four sets of partial sums.
HWY_INLINE hn::Vec<Quarter> TreeSums(const Sixteen (&sums)[kScoreKeys]) {
  const Quarter d;
  hn::Vec<Quarter> four[kScoreKeys];
#pragma GCC unroll 4
  for (int i = 0; i < kScoreKeys; ++i) four[i] = FourSums(sums[i]);
  const auto first =
      hn::Add(hn::ConcatLowerLower(d, four[1], four[0]), hn::ConcatUpperUpper(d, four[1], four[0]));
  const auto second =
      hn::Add(hn::ConcatLowerLower(d, four[3], four[2]), hn::ConcatUpperUpper(d, four[3], four[2]));
  return hn::Add(hn::ConcatEven(d, second, first), hn::ConcatOdd(d, second, first));
}

// Scores of R queries with four keys: scores[r][0..3].
template <int R, typename T>
HWY_INLINE void ScoresOf(const float* const* queries, const T* keys, int64_t head_dim,
                         float* const* scores, int64_t key) {
  Sixteen sums[R][kScoreKeys];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int k = 0; k < kScoreKeys; ++k) Clear(sums[r][k]);
  }
  for (int64_t at = 0; at < head_dim; at += kSums) {
#pragma GCC unroll 2
    for (int v = 0; v < kSumVectors; ++v) {
      V wide[kScoreKeys];
#pragma GCC unroll 4
      for (int k = 0; k < kScoreKeys; ++k) {
        wide[k] = Widen(D(), keys + k * head_dim + at + v * kLanes);
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const V query = hn::LoadU(D(), queries[r] + at + v * kLanes);
#pragma GCC unroll 4
        for (int k = 0; k < kScoreKeys; ++k) {
          sums[r][k][v] = hn::MulAdd(query, wide[k], sums[r][k][v]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) hn::StoreU(TreeSums(sums[r]), Quarter(), scores[r] + key);
}

// Chains of R rows over keys [begin, end), for N vectors of outputs.
template <int R, int N, typename T>
HWY_INLINE void ValuesOf(const float* const* weights, const T* values, int64_t head_dim,
                         int64_t begin, int64_t end, float* const* outputs, int64_t column) {
  V sums[R][N];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sums[r][n] = hn::LoadU(D(), outputs[r] + column + n * kLanes);
  }
  for (int64_t key = begin; key < end; ++key) {
    const T* value = values + key * head_dim + column;
    V wide[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) wide[n] = Widen(D(), value + n * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const V weight = Constant(weights[r][key]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sums[r][n] = hn::MulAdd(weight, wide[n], sums[r][n]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) hn::StoreU(sums[r][n], D(), outputs[r] + column + n * kLanes);
  }
}

template <int R, typename T>
HWY_NOINLINE void AddValues(const float* const* weights, const T* values, int64_t head_dim,
                            int64_t begin, int64_t end, float* const* outputs) {
  if (begin >= end) return;
  constexpr int64_t kStep = kValueVectors * kLanes;
  int64_t column = 0;
  for (; column + kStep <= head_dim; column += kStep) {
    ValuesOf<R, kValueVectors>(weights, values, head_dim, begin, end, outputs, column);
  }
  for (; column < head_dim; column += kLanes) {
    ValuesOf<R, 1>(weights, values, head_dim, begin, end, outputs, column);
  }
}

// Columns [column, column + kLanes) of a token, whose numbers are at the same place of their bytes.
HWY_INLINE V DequantizeLanes(const QuantizedPlane& plane, const std::byte* codes,
                             const BFloat16* steps, const BFloat16* leasts, int64_t token,
                             int64_t column) {
  const hn::Rebind<uint8_t, D> narrow;
  const hn::Rebind<int32_t, D> wide;
  const int64_t width = plane.width();
  const int shift = static_cast<int>(column / width) * static_cast<int>(plane.form.bits);
  const auto bytes =
      hn::LoadU(narrow, reinterpret_cast<const uint8_t*>(codes) + token * width + column % width);
  const auto mask = hn::Set(wide, (1 << plane.form.bits) - 1);
  const auto numbers = hn::And(hn::ShiftRightSame(hn::PromoteTo(wide, bytes), shift), mask);
  const int64_t group = plane.GroupOf(token, column);
  if (plane.axis == 0) {  // one group: kLanes divide it
    return hn::MulAdd(hn::ConvertTo(D(), numbers), Constant(WidenOne(steps[group])),
                      Constant(WidenOne(leasts[group])));
  }
  return hn::MulAdd(hn::ConvertTo(D(), numbers), Widen(D(), steps + group),
                    Widen(D(), leasts + group));
}

inline void DequantizePlane(const QuantizedPlane& plane, const std::byte* from, float* to) {
  const int64_t width = plane.width(), group = plane.form.group;
  if (width % kLanes != 0 || (plane.axis == 0 && group % kLanes != 0)) {
    return reference::DequantizePlane(plane, from, to);
  }
  const auto* steps = reinterpret_cast<const BFloat16*>(from + plane.tokens * width);
  const BFloat16* leasts = steps + plane.tokens * plane.head_dim / group;
  for (int64_t token = 0; token < plane.tokens; ++token) {
    for (int64_t column = 0; column < plane.head_dim; column += kLanes) {
      hn::StoreU(DequantizeLanes(plane, from, steps, leasts, token, column), D(),
                 to + token * plane.head_dim + column);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();
#endif  // HEARTH_KERNELS_VECTORS

#endif  // HEARTH_WORKER_KERNELS_ATTEND_INL_H_
