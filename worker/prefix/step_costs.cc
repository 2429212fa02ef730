#include "worker/prefix/step_costs.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace hearth {
namespace {

// After so many prefilled tokens an observation counts e times less: a few prompts' worth.
constexpr double kMemoryTokens = 8192;
// The terms in units in which all three are near 1 for usual steps.
constexpr double kRowsUnit = 256, kPositionUnit = 4096;
// Where steps are all alike nothing tells the terms apart: this much of their weight does. The cost
// of a step by itself is believed last: without it a short piece seems as dear as it was long.
constexpr double kRidge = 1e-3;
constexpr double kFirstTermRidge = 30;  // times as much

}  // namespace

StepCosts::Terms StepCosts::TermsOf(double rows, double position) {
  const double scaled = rows / kRowsUnit;
  return {1, scaled, scaled * position / kPositionUnit};
}

void StepCosts::Add(uint32_t rows, double position, double seconds) {
  if (rows == 0 || !(seconds > 0)) return;
  const double kept = std::exp(-static_cast<double>(rows) / kMemoryTokens);
  const Terms terms = TermsOf(rows, position);
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) {
      squares_[i][j] = squares_[i][j] * kept + terms[i] * terms[j];
    }
    products_[i] = products_[i] * kept + terms[i] * seconds;
  }
  Fit();
  known_ = true;
}

// Gaussian elimination over the terms in use; the most negative one leaves, until there is none.
void StepCosts::Fit() {
  std::array<bool, kTerms> used;
  used.fill(true);
  double ridge = 0;
  for (int i = 0; i < kTerms; ++i) ridge += squares_[i][i] * kRidge / kTerms;
  for (;;) {
    std::array<std::array<double, kTerms + 1>, kTerms> rows{};
    for (int i = 0; i < kTerms; ++i) {
      if (!used[i]) {
        rows[i][i] = 1;
        continue;
      }
      for (int j = 0; j < kTerms; ++j) rows[i][j] = used[j] ? squares_[i][j] : 0;
      rows[i][i] += i == 0 ? ridge * kFirstTermRidge : ridge;
      rows[i][kTerms] = products_[i];
    }
    // Positive definite by the ridge: no pivot is zero.
    for (int i = 0; i < kTerms; ++i) {
      for (int k = 0; k < kTerms; ++k) {
        if (k == i) continue;
        const double factor = rows[k][i] / rows[i][i];
        for (int j = i; j <= kTerms; ++j) rows[k][j] -= factor * rows[i][j];
      }
    }
    for (int i = 0; i < kTerms; ++i) costs_[i] = rows[i][kTerms] / rows[i][i];
    const auto least = std::min_element(costs_.begin(), costs_.end());
    if (*least >= 0) return;
    used[least - costs_.begin()] = false;
  }
}

double StepCosts::Seconds(uint32_t begin, uint32_t end, uint32_t step_tokens) const {
  assert(known_ && step_tokens >= 1);
  if (end <= begin) return 0;
  const double tokens = end - begin;
  const double steps = std::ceil(tokens / step_tokens);
  const Terms terms = TermsOf(tokens, (static_cast<double>(begin) + end) / 2);
  return costs_[0] * steps + costs_[1] * terms[1] + costs_[2] * terms[2];
}

}  // namespace hearth
