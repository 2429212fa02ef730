#include "bench/gpu/fused_rules.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>

#include "bench/gpu/tensor_core_cases.h"

namespace hearth {
namespace {

// significand * 2^(exponent - fraction bits of its format).
struct FloatParts {
  int64_t significand;
  int exponent;
};

// Of a finite value with `fraction` bits below the leading one, given as its bits.
FloatParts PartsOf(uint32_t bits, int fraction, Subnormals subnormals) {
  const int exponent = static_cast<int>(bits >> fraction & 255);
  int64_t significand = bits & ((uint32_t{1} << fraction) - 1);
  FloatParts parts{significand, -126};
  if (exponent != 0) {
    parts = {significand | int64_t{1} << fraction, exponent - 127};
  } else if (significand != 0 && subnormals == Subnormals::kZero) {
    parts.significand = 0;
  } else if (significand != 0 && subnormals == Subnormals::kNormalized) {
    const int up = fraction - (63 - __builtin_clzll(static_cast<uint64_t>(significand)));
    parts = {significand << up, -126 - up};
  }
  if (bits >> (fraction + 8) & 1) parts.significand = -parts.significand;
  return parts;
}

// value / 2^right as an integer. REQUIRES: |value| < 2^61, and value * 2^-right fits where right <
// 0.
int64_t CutRight(int64_t value, int right, Cut cut) {
  if (right <= 0) return value * (int64_t{1} << -right);
  if (right > 62) right = 62;
  const int64_t down = value >> right;
  const int64_t rest = value - down * (int64_t{1} << right), half = int64_t{1} << (right - 1);
  if (cut == Cut::kTowardZero) return down + (value < 0 && rest != 0 ? 1 : 0);
  if (cut == Cut::kDown) return down;
  return down + (rest > half || (rest == half && (down & 1)) ? 1 : 0);
}

// sum * 2^unit as float32.
float FloatOfSum(int64_t sum, int unit, const FusedRule& rule) {
  if (sum == 0) return 0.0f;
  const int top = 63 - __builtin_clzll(static_cast<uint64_t>(sum < 0 ? -sum : sum));
  int drop = top - 23;
  if (drop < -149 - unit) drop = -149 - unit;  // a subnormal result
  const int64_t cut = CutRight(sum, drop, rule.result);
  if (cut == 0) return sum < 0 && rule.tiny_sign ? -0.0f : 0.0f;
  const float value = std::ldexp(static_cast<float>(cut), unit + drop);
  if (!rule.tiny_results && std::fabs(value) < std::numeric_limits<float>::min()) {
    return std::copysign(0.0f, rule.tiny_sign ? value : 0.0f);
  }
  if (std::isinf(value) && rule.saturates) {
    return std::copysign(std::numeric_limits<float>::max(), value);
  }
  return value;
}

// Whether NaNs or infinities decide the result; then *result is it.
bool SpecialResult(const uint16_t* a, const uint16_t* b, const float* c, int count,
                   const FusedRule& rule, float* result) {
  bool special = (c != nullptr && !std::isfinite(*c)) || !rule.large_products;
  for (int i = 0; i < count; ++i) {
    special |= (a[i] & 0x7f80) == 0x7f80 || (b[i] & 0x7f80) == 0x7f80;
  }
  if (!special) return false;
  bool nan = c != nullptr && std::isnan(*c);
  bool plus = c != nullptr && std::isinf(*c) && *c > 0;
  bool minus = c != nullptr && std::isinf(*c) && *c < 0;
  for (int i = 0; i < count; ++i) {
    const float x = FloatOfBf16(a[i]), y = FloatOfBf16(b[i]);
    if (std::isnan(x) || std::isnan(y)) nan = true;
    const bool infinite = std::isinf(x) || std::isinf(y);
    if (infinite && (x == 0 || y == 0)) nan = true;
    if (!infinite && (rule.large_products || !std::isinf(x * y))) continue;
    (std::signbit(x) == std::signbit(y) ? plus : minus) = true;
  }
  if (!nan && !plus && !minus) return false;
  const float infinity = std::numeric_limits<float>::infinity();
  *result = nan || (plus && minus) ? FloatOfBits(rule.nan_bits) : plus ? infinity : -infinity;
  return true;
}

// `count` products (at most kStepInputs) and, unless it is null, *c, added at once.
float FusedSum(const uint16_t* a, const uint16_t* b, const float* c, int count,
               const FusedRule& rule) {
  float special;
  if (SpecialResult(a, b, c, count, rule, &special)) return special;
  FloatParts terms[kStepInputs], sum{0, FusedRule::kNone};
  int largest = FusedRule::kNone;
  bool all_minus = true;
  for (int i = 0; i < count; ++i) {
    const FloatParts x = PartsOf(a[i], 7, rule.subnormals), y = PartsOf(b[i], 7, rule.subnormals);
    terms[i] = {x.significand * y.significand, x.exponent + y.exponent};
    all_minus &= ((a[i] ^ b[i]) & 0x8000) != 0;
    if ((rule.zeros_align || terms[i].significand != 0) && terms[i].exponent > largest) {
      largest = terms[i].exponent;
    }
  }
  if (c != nullptr) {
    sum = PartsOf(BitsOfFloat(*c), 23, rule.subnormals);
    all_minus &= std::signbit(*c);
    if ((rule.zeros_align || sum.significand != 0) && sum.exponent > largest) {
      largest = sum.exponent;
    }
  }
  if (largest < rule.least_exponent) largest = rule.least_exponent;
  const int unit = largest - rule.fraction_bits;
  int64_t total =
      sum.significand == 0 ? 0 : CutRight(sum.significand, unit + 23 - sum.exponent, rule.term);
  bool zeros = sum.significand == 0;
  for (int i = 0; i < count; ++i) {
    if (terms[i].significand == 0) continue;
    total += CutRight(terms[i].significand, unit + 14 - terms[i].exponent, rule.term);
    zeros = false;
  }
  if (zeros) return all_minus && rule.minus_zero ? -0.0f : 0.0f;
  return FloatOfSum(total, unit, rule);
}

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
            for (const int zeros : {0, 1, 2}) {
              rule.zeros_align = zeros == 2;
              rule.least_exponent = zeros == 0 ? kStepExponent : FusedRule::kNone;
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

std::vector<FusedRule> WithLeastExponents(FusedRule rule) {
  std::vector<FusedRule> rules = {rule};
  if (rule.zeros_align) return rules;  // a zero's exponent is larger
  for (int exponent = -140; exponent <= -120; ++exponent) {
    rule.least_exponent = exponent;
    rules.push_back(rule);
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
        differing += !SameResult(DotOfRule(o.a, o.b, o.c, score.rule), o.d);
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

float DotOfRule(const uint16_t* a, const uint16_t* b, float c, const FusedRule& rule) {
  for (int i = 0; i < kStepInputs; i += rule.group) {
    if (!rule.sum_apart) {
      c = FusedSum(a + i, b + i, &c, rule.group, rule);
      continue;
    }
    const float products = FusedSum(a + i, b + i, nullptr, rule.group, rule);
    c = FusedSum(nullptr, nullptr, &c, 0, rule) + products;  // float32's own addition
  }
  return c;
}

std::string NameOf(const FusedRule& rule) {
  std::string name = std::to_string(rule.fraction_bits) + " bits, terms " + NameOf(rule.term) +
                     ", result " + NameOf(rule.result) + ", " + std::to_string(rule.group) +
                     " at once";
  if (rule.sum_apart) name += ", the sum apart";
  if (rule.zeros_align) name += ", zeros have an exponent";
  if (rule.least_exponent == FusedRule::kNone) {
    name += ", no least exponent";
  } else if (rule.least_exponent != kStepExponent) {
    name += ", exponents from " + std::to_string(rule.least_exponent);
  }
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
  std::vector<RuleScore> all = Scored(Candidates(), observations, stop);
  for (const auto variants : {WithSigns, WithLeastExponents, WithSigns}) {
    std::vector<RuleScore> others = Scored(variants(all.front().rule), observations, stop);
    all.insert(all.begin(), others.begin(), others.end());
    std::stable_sort(all.begin(), all.end(), [](const RuleScore& x, const RuleScore& y) {
      return x.differing < y.differing;
    });
  }
  // A variant repeats the rule that it was made from.
  std::vector<RuleScore> unique;
  std::set<std::string> names;
  for (RuleScore& score : all) {
    if (names.insert(NameOf(score.rule)).second) unique.push_back(std::move(score));
  }
  return unique;
}

}  // namespace hearth
