#include "worker/kernels/logit_rows.h"

#include <algorithm>
#include <cassert>
#include <cfloat>
#include <cmath>

#include "worker/kernels/float_mode.h"
#include "worker/kernels/highway_targets.h"

// Highway compiles this file once for each target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/kernels/logit_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// After Highway.
#include <hwy/contrib/math/math-inl.h>

#include "worker/kernels/vectors-inl.h"

#ifndef HEARTH_WORKER_KERNELS_LOGIT_ROWS_ONCE_
#define HEARTH_WORKER_KERNELS_LOGIT_ROWS_ONCE_
namespace hearth {

// Below it a weight is nothing beside the greatest's, which is 1.
constexpr double kLeastExponent = -690;

inline double WeightOf(float logit, double greatest, double temperature) {
  return std::exp(std::max((logit - greatest) / temperature, kLeastExponent));
}

// From `begin` on: what the vectors leave, and all where there are none. False: not all are finite.
inline bool ScanRest(const float* logits, int64_t begin, int64_t count, float* greatest) {
  bool finite = true;
  for (int64_t i = begin; i < count; ++i) {
    finite &= std::fabs(logits[i]) <= FLT_MAX;
    *greatest = std::max(*greatest, logits[i]);
  }
  return finite;
}

inline int64_t NextGreaterOfRest(const float* logits, int64_t begin, int64_t count, float bound) {
  while (begin < count && !(logits[begin] > bound)) ++begin;
  return begin;
}

}  // namespace hearth
#endif  // HEARTH_WORKER_KERNELS_LOGIT_ROWS_ONCE_

HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {

#if HEARTH_KERNELS_VECTORS

LogitScan ScanRow(const float* logits, int64_t count) {
  const V most = Constant(FLT_MAX);
  V greatest = Constant(-FLT_MAX);
  auto finite = hn::Eq(most, most);
  int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes) {
    const V values = hn::LoadU(D(), logits + at);
    finite = hn::And(finite, hn::Le(hn::Abs(values), most));
    greatest = hn::Max(greatest, values);
  }
  if (!hn::AllTrue(D(), finite)) return LogitScan();
  float value = hn::GetLane(hn::MaxOfLanes(D(), greatest));
  if (!ScanRest(logits, at, count, &value)) return LogitScan();
  const V wanted = Constant(value);
  for (int64_t i = 0; i < at; i += kLanes) {
    const auto found = hn::FindFirstTrue(D(), hn::Eq(hn::LoadU(D(), logits + i), wanted));
    if (found >= 0) return {true, i + found};
  }
  return {true, std::find(logits + at, logits + count, value) - logits};
}

int64_t NextGreaterInRow(const float* logits, int64_t begin, int64_t count, float bound) {
  const V last = Constant(bound);
  for (; begin + kLanes <= count; begin += kLanes) {
    const auto found = hn::FindFirstTrue(D(), hn::Gt(hn::LoadU(D(), logits + begin), last));
    if (found >= 0) return begin + found;
  }
  return NextGreaterOfRest(logits, begin, count, bound);
}

void SumWeightsOfRow(const float* logits, int64_t count, double greatest, double temperature,
                     double* sums) {
  constexpr int kDoubles = kLanes / 2;
  const hn::FixedTag<double, kDoubles> doubles;
  const hn::FixedTag<float, kDoubles> floats;
  const auto most = hn::Set(doubles, greatest), divisor = hn::Set(doubles, temperature);
  const auto least = hn::Set(doubles, kLeastExponent);
  for (int64_t block = 0; block < count; block += kWeightBlock) {
    const int64_t end = std::min(count, block + kWeightBlock);
    auto sum = hn::Zero(doubles);
    int64_t at = block;
    for (; at + kDoubles <= end; at += kDoubles) {
      const auto logit = hn::PromoteTo(doubles, hn::LoadU(floats, logits + at));
      const auto exponent = hn::Max(hn::Div(hn::Sub(logit, most), divisor), least);
      sum = hn::Add(sum, hn::Exp(doubles, exponent));
    }
    double of_block = hn::GetLane(hn::SumOfLanes(doubles, sum));
    for (; at < end; ++at) of_block += WeightOf(logits[at], greatest, temperature);
    sums[block / kWeightBlock] = of_block;
  }
}

#else  // no FMA in vectors

LogitScan ScanRow(const float* logits, int64_t count) {
  float greatest = -FLT_MAX;
  if (!ScanRest(logits, 0, count, &greatest)) return LogitScan();
  return {true, std::find(logits, logits + count, greatest) - logits};
}
int64_t NextGreaterInRow(const float* logits, int64_t begin, int64_t count, float bound) {
  return NextGreaterOfRest(logits, begin, count, bound);
}
void SumWeightsOfRow(const float* logits, int64_t count, double greatest, double temperature,
                     double* sums) {
  for (int64_t block = 0; block < count; block += kWeightBlock) {
    double sum = 0;
    for (int64_t i = block; i < std::min(count, block + kWeightBlock); ++i) {
      sum += WeightOf(logits[i], greatest, temperature);
    }
    sums[block / kWeightBlock] = sum;
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hearth {

HWY_EXPORT(ScanRow);
HWY_EXPORT(NextGreaterInRow);
HWY_EXPORT(SumWeightsOfRow);

LogitScan ScanLogits(const float* logits, int64_t count) {
  assert(count >= 1);
  return HWY_DYNAMIC_DISPATCH(ScanRow)(logits, count);
}

int64_t NextGreater(const float* logits, int64_t begin, int64_t count, float bound) {
  return HWY_DYNAMIC_DISPATCH(NextGreaterInRow)(logits, begin, count, bound);
}

void SumWeights(const float* logits, int64_t count, double greatest, double temperature,
                double* sums) {
  assert(temperature > 0);
  const FloatMode mode;
  HWY_DYNAMIC_DISPATCH(SumWeightsOfRow)(logits, count, greatest, temperature, sums);
}

}  // namespace hearth
#endif  // HWY_ONCE
