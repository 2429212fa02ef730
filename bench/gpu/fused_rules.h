// The candidates for a tensor core's step, and which of them agree with observed results.
#ifndef HEARTH_BENCH_GPU_FUSED_RULES_H_
#define HEARTH_BENCH_GPU_FUSED_RULES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu/fused_dot.h"

namespace hearth {

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
// the published rule first. Signs of zeros, overflow and subnormal results are varied for the best
// one only.
// A rule with more than `stop` differing is not scored further: its by_class is shorter.
std::vector<RuleScore> ScoreRules(const std::vector<std::vector<Observation>>& observations,
                                  uint64_t stop);

}  // namespace hearth

#endif  // HEARTH_BENCH_GPU_FUSED_RULES_H_
