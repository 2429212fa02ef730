// The candidates for a tensor core's step, and which of them agree with observed results.
#ifndef HEARTH_BENCH_GPU_FUSED_RULES_H_
#define HEARTH_BENCH_GPU_FUSED_RULES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu/fused_dot.h"

namespace hearth {

enum class Cut { kTowardZero, kDown, kNearest };  // nearest: ties to even
enum class Subnormals { kKept, kNormalized, kZero };

// A candidate. The defaults are the measured step, as FusedDot computes it.
struct FusedRule {
  int fraction_bits = kStepBits;  // kept below the largest exponent
  Cut term = Cut::kTowardZero;    // a product or the sum so far, at the last kept bit
  Cut result = Cut::kTowardZero;  // the total, to float32
  int group = kStepInputs;        // products added at once; groups follow one another
  bool sum_apart = false;    // products are added first; the sum so far is added to their total
  bool zeros_align = false;  // a zero has the exponent -126 of its inputs and may be the largest
  int least_exponent = kStepExponent;         // the least value of the largest exponent
  Subnormals subnormals = Subnormals::kKept;  // of the inputs
  bool minus_zero = false;     // the total of zeros that are all negative is -0; else +0
  bool tiny_sign = false;      // a negative total that is cut to zero is -0; else +0
  bool saturates = false;      // a total above float32 is its largest value; else infinity
  bool large_products = true;  // a product of 2^128 or more counts as it is; else as infinity
  bool tiny_results = true;    // a subnormal result is kept; else it is zero
  uint32_t nan_bits = kStepNan;

  static constexpr int kNone = -1000;  // as least_exponent
};

// c and the 16 products of a and b by a rule.
float DotOfRule(const uint16_t* a, const uint16_t* b, float c, const FusedRule& rule);

// One output of one step, as a device computed it.
struct Observation {
  uint16_t a[kStepInputs], b[kStepInputs];
  float c, d;
};

struct RuleScore {
  FusedRule rule;
  uint64_t differing = 0;
  std::vector<uint64_t> by_class;
};

// "25 bits, terms cut, result cut, 16 at once", and each further property that is not
// FusedRule()'s.
std::string NameOf(const FusedRule& rule);

// Equal bits, or both NaN.
bool SameResult(float x, float y);

// All candidates scored by observations[class][i], the fewest differing first; equal scores keep
// FusedRule() first. Signs of zeros, overflow and subnormal results, and the least exponent,
// are varied for the best rule only.
// A rule with more than `stop` differing is not scored further: its by_class is shorter.
std::vector<RuleScore> ScoreRules(const std::vector<std::vector<Observation>>& observations,
                                  uint64_t stop);

}  // namespace hearth

#endif  // HEARTH_BENCH_GPU_FUSED_RULES_H_
