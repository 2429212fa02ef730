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
// Include after the headers of Highway.
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

LogitScan ScanRow(const float* logits, int64_t count) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto most = hn::Set(d, FLT_MAX);
  auto greatest = hn::Set(d, -FLT_MAX);
  auto finite = hn::Eq(most, most);
  int64_t at = 0;
  for (; at + lanes <= count; at += lanes) {
    const auto values = hn::LoadU(d, logits + at);
    finite = hn::And(finite, hn::Le(hn::Abs(values), most));
    greatest = hn::Max(greatest, values);
  }
  bool all_finite = hn::AllTrue(d, finite);
  float value = hn::GetLane(hn::MaxOfLanes(d, greatest));
  for (int64_t i = at; i < count; ++i) {
    all_finite &= std::fabs(logits[i]) <= FLT_MAX;
    value = std::max(value, logits[i]);
  }
  if (!all_finite) return LogitScan();
  const auto wanted = hn::Set(d, value);
  for (int64_t i = 0; i < at; i += lanes) {
    const auto found = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, logits + i), wanted));
    if (found >= 0) return {true, i + found};
  }
  return {true, std::find(logits + at, logits + count, value) - logits};
}

int64_t NextGreaterInRow(const float* logits, int64_t begin, int64_t count, float bound) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto last = hn::Set(d, bound);
  for (; begin + lanes <= count; begin += lanes) {
    const auto found = hn::FindFirstTrue(d, hn::Gt(hn::LoadU(d, logits + begin), last));
    if (found >= 0) return begin + found;
  }
  while (begin < count && !(logits[begin] > bound)) ++begin;
  return begin;
}

void SumWeightsOfRow(const float* logits, int64_t count, double greatest, double temperature,
                     double* sums) {
  // exp of any smaller exponent is negligible, because the greatest logit has weight 1.
  constexpr double kLeastExponent = -690;
  const hn::ScalableTag<double> doubles;
  const hn::Rebind<float, decltype(doubles)> floats;
  const auto lanes = static_cast<int64_t>(hn::Lanes(doubles));
  const auto most = hn::Set(doubles, greatest), divisor = hn::Set(doubles, temperature);
  const auto least = hn::Set(doubles, kLeastExponent);
  for (int64_t block = 0; block < count; block += kWeightBlock) {
    const int64_t end = std::min(count, block + kWeightBlock);
    auto sum = hn::Zero(doubles);
    int64_t at = block;
    for (; at + lanes <= end; at += lanes) {
      const auto logit = hn::PromoteTo(doubles, hn::LoadU(floats, logits + at));
      const auto exponent = hn::Max(hn::Div(hn::Sub(logit, most), divisor), least);
      sum = hn::Add(sum, hn::Exp(doubles, exponent));
    }
    double of_block = hn::GetLane(hn::SumOfLanes(doubles, sum));
    for (; at < end; ++at) {
      of_block += std::exp(std::max((logits[at] - greatest) / temperature, kLeastExponent));
    }
    sums[block / kWeightBlock] = of_block;
  }
}

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
