#include "cache_store/retention/return_model.h"

#include <algorithm>
#include <cmath>

namespace hearth {
namespace {

// Amount of evidence, in tokens, with which a value learned for a class counts as much as the value
// of the next coarser class. kFactorTokens: for a factor over all ages, about a dozen requests of
// 12k tokens. kAgeTokens: for one age, thirty times as much.
constexpr double kFactorTokens = 150e3;
constexpr double kAgeTokens = 5e6;
constexpr double kBaseTokens = 2.5e3;
// Assumed probability of a use without any evidence: 2 % in the first bucket (one second),
// decreasing by a factor in each further bucket.
constexpr double kFirstChance = 0.02, kChanceDecay = 0.8;
constexpr double kChanceMax = 0.98;
// Each Learn() multiplies the older counts by this factor, because users' habits change.
constexpr double kMemory = 0.99;

constexpr uint32_t kLengthTokens = 512;  // prompt lengths are counted in this many tokens
constexpr uint32_t kTurnMax = 4;
// First number of each kind. The kind is the first part of a class.
constexpr int kAddedKinds = 0;    // 12 kinds: turn 1 to 4 x (first, second, later child)
constexpr int kSharedKinds = 12;  // 4 kinds: turn 1 to 4
constexpr int kHubKinds = 16;     // 7 kinds: log2 of the number of children
constexpr int kPassedKinds = 23;  // 4 kinds: 1, 2, 3 to 5, or more children
constexpr int kRemainderKind = 27;
static_assert(kRemainderKind < ReturnModel::kKinds);

int Log2(uint32_t value) {
  int log = 0;
  for (; value > 1; value >>= 1) ++log;
  return log;
}

int TurnPart(uint32_t turn) { return static_cast<int>(std::min(turn, kTurnMax)) - 1; }

int LengthPart(uint32_t prompt_tokens) {
  return std::min(ReturnModel::kLengths - 1, Log2(prompt_tokens / kLengthTokens));
}

}  // namespace

ReturnModel::ReturnModel()
    : seen_(kClasses),
      entered_(kClasses),
      returned_(kClasses),
      worth_(kClasses),
      of_kind_(kKinds),
      of_fresh_(kKinds * kFresh),
      of_class_(kClasses) {
  for (int age = 0; age < kAges; ++age) {
    const int next = std::min(age + 1, kAges - 1);
    seconds_[age] = absl::ToDoubleSeconds(AgeBegin(next) - AgeBegin(age));
  }
  seconds_[kAges - 1] = seconds_[kAges - 2];
  for (Ages& ages : entered_) ages.fill(0);
  for (Ages& ages : returned_) ages.fill(0);
  Learn();
}

absl::Duration ReturnModel::AgeBegin(int age) {
  static const std::array<absl::Duration, kAges> begins = [] {
    std::array<absl::Duration, kAges> made;
    for (int i = 0; i < kAges; ++i) {
      made[i] = i == 0 ? absl::ZeroDuration() : absl::Seconds(std::pow(2.0, (i - 1) / 2.0));
    }
    return made;
  }();
  return begins[age];
}

int ReturnModel::AgeOf(absl::Duration since_use) {
  const double seconds = absl::ToDoubleSeconds(since_use);
  if (seconds < 1) return 0;
  int age = std::min(kAges - 1, 1 + static_cast<int>(2 * std::log2(seconds)));
  // Correct rounding errors of log2, so that the age agrees with the edges of the buckets.
  while (age + 1 < kAges && AgeBegin(age + 1) <= since_use) ++age;
  while (AgeBegin(age) > since_use) --age;
  return age;
}

void ReturnModel::Enter(int unit_class, int age, double tokens) {
  entered_[unit_class][age] += tokens;
  if (seen_[unit_class]) return;
  seen_[unit_class] = true;
  LearnClass(unit_class);
}

void ReturnModel::Return(int unit_class, int age, double tokens) {
  returned_[unit_class][age] += tokens;
}

void ReturnModel::LearnBase() {
  Ages entered{}, returned{};
  for (int c = 0; c < kClasses; ++c) {
    if (!seen_[c]) continue;
    for (int age = 0; age < kAges; ++age) {
      entered[age] += entered_[c][age];
      returned[age] += returned_[c][age];
    }
  }
  for (int age = 0; age < kAges; ++age) {
    const double before = age > 0 ? base_[age - 1] * kChanceDecay : kFirstChance;
    const double chance = (returned[age] + kBaseTokens * before) / (entered[age] + kBaseTokens);
    base_[age] = std::min(chance, kChanceMax);
  }
}

void ReturnModel::SumEvidence() {
  std::fill(of_kind_.begin(), of_kind_.end(), Evidence());
  std::fill(of_fresh_.begin(), of_fresh_.end(), Evidence());
  std::fill(of_class_.begin(), of_class_.end(), Evidence());
  for (int c = 0; c < kClasses; ++c) {
    if (!seen_[c]) continue;
    for (int age = 0; age < kAges; ++age) {
      of_class_[c].returned += returned_[c][age];
      of_class_[c].expected += entered_[c][age] * base_[age];
    }
    for (Evidence* sum : {&of_fresh_[c / kLengths], &of_kind_[c / kLengths / kFresh]}) {
      sum->returned += of_class_[c].returned;
      sum->expected += of_class_[c].expected;
    }
  }
}

void ReturnModel::Fade() {
  for (int c = 0; c < kClasses; ++c) {
    if (!seen_[c]) continue;
    for (int age = 0; age < kAges; ++age) {
      entered_[c][age] *= kMemory;
      returned_[c][age] *= kMemory;
    }
  }
}

void ReturnModel::Learn() {
  Fade();
  LearnBase();
  SumEvidence();
  for (int c = 0; c < kClasses; ++c) {
    if (seen_[c]) LearnClass(c);
  }
}

void ReturnModel::LearnClass(int unit_class) {
  const auto blend = [](const Evidence& evidence, double coarser) {
    return (evidence.returned + kFactorTokens * coarser) / (evidence.expected + kFactorTokens);
  };
  const double of_kind = blend(of_kind_[unit_class / kLengths / kFresh], 1.0);
  const double factor =
      blend(of_class_[unit_class], blend(of_fresh_[unit_class / kLengths], of_kind));
  Ages chance;
  for (int age = 0; age < kAges; ++age) {
    const double expected = std::min(kChanceMax, base_[age] * factor);
    const double own = (returned_[unit_class][age] + kAgeTokens * expected) /
                       (entered_[unit_class][age] + kAgeTokens);
    chance[age] = std::min(own, kChanceMax);
  }
  for (int age = 0; age < kAges; ++age) {
    // Consider keeping the unit until the end of bucket `end`, or until it is used. The best `end`
    // counts, so that a unit is not evicted while its return is still likely.
    double best = 0, alive = 1, uses = 0, kept_seconds = 0;
    for (int end = age; end < kAges - 1; ++end) {
      // A unit has on average somewhat more than half of its current bucket left.
      const double seconds = seconds_[end] * (end == age ? 0.7 : 1.0);
      uses += alive * chance[end];
      kept_seconds += alive * (1 - chance[end] / 2) * seconds;
      alive *= 1 - chance[end];
      best = std::max(best, uses / kept_seconds);
    }
    worth_[unit_class][age] = best;
  }
}

int AddedClass(uint32_t turn, uint32_t children, uint32_t fresh_tokens, uint32_t prompt_tokens) {
  const int branch = fresh_tokens == 0 || children < 2 ? 0 : children == 2 ? 1 : 2;
  const int kind = kAddedKinds + branch * static_cast<int>(kTurnMax) + TurnPart(turn);
  const uint32_t fresh_units = fresh_tokens / kLengthTokens;
  const int fresh = fresh_units == 0 ? 0 : std::min(ReturnModel::kFresh - 1, 1 + Log2(fresh_units));
  return ReturnModel::ClassOf(kind, fresh, LengthPart(prompt_tokens));
}

int SharedClass(uint32_t turn, uint32_t prompt_tokens) {
  return ReturnModel::ClassOf(kSharedKinds + TurnPart(turn), 0, LengthPart(prompt_tokens));
}

int HubClass(uint32_t children) {
  return ReturnModel::ClassOf(kHubKinds + std::min(6, Log2(children)), 0, 0);
}

int PassedClass(uint32_t children, bool by_same_request) {
  const int more = children < 2 ? 0 : children == 2 ? 1 : children < kHubChildren ? 2 : 3;
  return ReturnModel::ClassOf(kPassedKinds + more, by_same_request ? 1 : 0, 0);
}

bool IsPassedClass(int unit_class) {
  return unit_class >= ReturnModel::ClassOf(kPassedKinds, 0, 0) &&
         unit_class < ReturnModel::ClassOf(kRemainderKind, 0, 0);
}

int RemainderClass() { return ReturnModel::ClassOf(kRemainderKind, 0, 0); }

int DensityOf(uint32_t gain_tokens, uint64_t bytes) {
  const double ratio =
      std::max(1u, gain_tokens) / static_cast<double>(std::max<uint64_t>(1, bytes));
  return static_cast<int>(std::floor(2 * std::log2(ratio)));
}

}  // namespace hearth
