// StepCosts: predicts the cost of computing a piece of a prompt, learned from past steps.
//
// A step of n rows at mean position p takes s + n * (a + b * p): weights are read once, each row is
// multiplied with them, and attends to the rows before it. The three are a least-squares fit to the
// last steps, in which older ones count less.
// Thread safety: none. Units: seconds, tokens.
#ifndef HEARTH_WORKER_PREFIX_STEP_COSTS_H_
#define HEARTH_WORKER_PREFIX_STEP_COSTS_H_

#include <array>
#include <cstdint>

namespace hearth {

class StepCosts {
 public:
  // A step of `rows` tokens, at `position` in their prompts on average. Ignored without rows.
  void Add(uint32_t rows, double position, double seconds);
  bool known() const { return known_; }
  // Of tokens [begin, end) of a prompt, in steps of at most `step_tokens`.
  // REQUIRES: known(), step_tokens >= 1.
  double Seconds(uint32_t begin, uint32_t end, uint32_t step_tokens) const;

 private:
  static constexpr int kTerms = 3;
  using Terms = std::array<double, kTerms>;
  static Terms TermsOf(double rows, double position);
  void Fit();

  std::array<Terms, kTerms> squares_{};  // sums of products of terms
  Terms products_{};                     // of terms and seconds
  Terms costs_{};                        // none is negative
  bool known_ = false;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_PREFIX_STEP_COSTS_H_
