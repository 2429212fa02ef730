// The inner loops of attention: scores of a few queries with four keys, and chains of a few rows
// over a run of keys. Private to worker/kernels; included once for each target, after Highway.
#if defined(HEARTH_WORKER_KERNELS_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEARTH_WORKER_KERNELS_ATTEND_INL_H_
#undef HEARTH_WORKER_KERNELS_ATTEND_INL_H_
#else
#define HEARTH_WORKER_KERNELS_ATTEND_INL_H_
#endif

#include <cstdint>

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

}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();
#endif  // HEARTH_KERNELS_VECTORS

#endif  // HEARTH_WORKER_KERNELS_ATTEND_INL_H_
