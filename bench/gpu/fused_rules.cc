#include "bench/gpu/fused_rules.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "bench/gpu/tensor_core_cases.h"

namespace hearth {
namespace {

const char* NameOf(Cut cut) {
  return cut == Cut::kTowardZero ? "cut" : cut == Cut::kDown ? "down" : "nearest";
}

std::vector<FusedRule> Candidates() {
  constexpr Cut kCuts[] = {Cut::kTowardZero, Cut::kDown, Cut::kNearest};
  std::vector<FusedRule> rules;
  FusedRule rule;
  for (const int bits : {25, 24, 26, 23, 27, 28, 30}) {
    rule.fraction_bits = bits;
    for (const Cut term : kCuts) {
      rule.term = term;
      for (const Cut result : kCuts) {
        rule.result = result;
        for (const int group : {16, 8, 4, 2, 1}) {
          rule.group = group;
          for (const bool apart : {false, true}) {
            rule.sum_apart = apart;
            for (const bool zeros : {true, false}) {
              rule.zeros_align = zeros;
              for (const Subnormals subnormals :
                   {Subnormals::kKept, Subnormals::kNormalized, Subnormals::kZero}) {
                rule.subnormals = subnormals;
                rules.push_back(rule);
              }
            }
          }
        }
      }
    }
  }
  return rules;
}

std::vector<FusedRule> WithSigns(FusedRule rule) {
  std::vector<FusedRule> rules;
  for (int i = 0; i < 32; ++i) {
    rule.minus_zero = i & 1;
    rule.tiny_sign = i & 2;
    rule.saturates = i & 4;
    rule.large_products = !(i & 8);
    rule.tiny_results = !(i & 16);
    rules.push_back(rule);
  }
  return rules;
}

std::vector<RuleScore> Scored(const std::vector<FusedRule>& rules,
                              const std::vector<std::vector<Observation>>& observations,
                              uint64_t stop) {
  std::vector<RuleScore> scores(rules.size());
  InThreads(static_cast<int>(rules.size()), [&](int r) {
    RuleScore& score = scores[static_cast<size_t>(r)];
    score.rule = rules[static_cast<size_t>(r)];
    for (const std::vector<Observation>& of_class : observations) {
      uint64_t differing = 0;
      for (const Observation& o : of_class) {
        differing += !SameResult(FusedDot(o.a, o.b, o.c, score.rule), o.d);
      }
      score.by_class.push_back(differing);
      score.differing += differing;
      if (score.differing > stop) return;
    }
  });
  std::stable_sort(scores.begin(), scores.end(), [](const RuleScore& x, const RuleScore& y) {
    return x.differing < y.differing;
  });
  return scores;
}

}  // namespace

std::string NameOf(const FusedRule& rule) {
  std::string name = std::to_string(rule.fraction_bits) + " bits, terms " + NameOf(rule.term) +
                     ", result " + NameOf(rule.result) + ", " + std::to_string(rule.group) +
                     " at once";
  if (rule.sum_apart) name += ", the sum apart";
  if (!rule.zeros_align) name += ", zeros without an exponent";
  if (rule.subnormals == Subnormals::kNormalized) name += ", subnormals normalized";
  if (rule.subnormals == Subnormals::kZero) name += ", subnormals are zero";
  if (rule.minus_zero) name += ", -0 of negative zeros";
  if (rule.tiny_sign) name += ", -0 of a tiny total";
  if (rule.saturates) name += ", overflow saturates";
  if (!rule.large_products) name += ", products of 2^128 are infinite";
  if (!rule.tiny_results) name += ", subnormal results are zero";
  return name;
}

bool SameResult(float x, float y) {
  return BitsOfFloat(x) == BitsOfFloat(y) || (std::isnan(x) && std::isnan(y));
}

std::vector<RuleScore> ScoreRules(const std::vector<std::vector<Observation>>& observations,
                                  uint64_t stop) {
  std::vector<RuleScore> scores = Scored(Candidates(), observations, stop);
  std::vector<RuleScore> best = Scored(WithSigns(scores.front().rule), observations, stop);
  best.insert(best.end(), scores.begin() + 1, scores.end());
  std::stable_sort(best.begin(), best.end(), [](const RuleScore& x, const RuleScore& y) {
    return x.differing < y.differing;
  });
  return best;
}

}  // namespace hearth
