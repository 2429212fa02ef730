// Sampler: chooses the next token from the logits of the last position.
//
// Order of the filters, as in transformers: temperature; top-k; top-p over the tokens that top-k
// keeps; min-p (keeps tokens at least min_p times as likely as the likeliest). Tokens with equal
// logits rank by id, lowest first, so top-k keeps exactly k tokens. LogitRules change the logits
// before all filters.
//
// Random numbers are counter based: the number for token `step` depends only on (seed, step), so a
// resumed sequence continues identically. It has 53 bits of splitmix64's output. Weights are
// doubles, added in a fixed order. Equal logits, parameters and step give the same token on every
// machine, unless exp() of two C libraries differs in the last bit exactly where the token is
// decided.
//
// The fixed order is ascending ids over the whole vocabulary. Faster sums in a different order,
// with an error bound, are used if they decide the token; otherwise the sums are computed in the
// fixed order.
//
// Thread safety: one thread at a time (the sampler keeps scratch memory); copies are independent.
// Ownership: does not keep the logits.
#ifndef HEARTH_WORKER_TEXT_SAMPLER_H_
#define HEARTH_WORKER_TEXT_SAMPLER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/model/step_logits.h"
#include "worker/text/logit_rules.h"

namespace hearth {

// Logits differ by tens, so at this temperature nearly all tokens are equally likely.
inline constexpr float kMaxTemperature = 100.0F;
inline constexpr uint32_t kMaxTopLogprobs = 20;

struct SamplingParams {
  float temperature = 0;  // 0: greedy (the other filters have no effect)
  uint32_t top_k = 0;     // 0: off
  float top_p = 0;        // 0: off; otherwise in (0, 1]
  float min_p = 0;        // in [0, 1]; 0: off
  uint64_t seed = 0;
  uint32_t logprobs = 0;         // number of alternatives reported with each token; 0: none
  bool report_logprobs = false;  // report the chosen token's logprob
  // Report the log probabilities of the prompt's tokens, with this number of alternatives.
  std::optional<uint32_t> prompt_logprobs;
  TokenRules rules;

  // Returns whether the log probabilities of drawn tokens are reported.
  bool reports() const { return report_logprobs || logprobs > 0; }
  // kInvalidArgument names the field, its value and the limit.
  absl::Status Validate() const;
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

// A sampled token. Log probabilities are the model's: computed from the logits before rules,
// temperature and filters.
struct SampledToken {
  int32_t id = 0;
  float logprob = 0;              // 0 unless params.reports()
  std::vector<TokenLogprob> top;  // `logprobs` alternatives, likeliest first
  uint32_t sample = 0;            // index of the answer among the request's samples
};

// A token that passed the filters. weight = exp((logit - greatest logit) / temperature).
struct Candidate {
  int32_t id = 0;
  float logit = 0;
  double weight = 0;
};

class Sampler {
 public:
  // Samples a token. `rules` change the logits for this call and restore them; may be null.
  // `allowed` has one bit for each token, the first token in the lowest bit: only tokens with a set
  // bit are sampled; empty: all tokens. kInvalidArgument: the rules leave no allowed token.
  // kInternal: a logit is not finite. REQUIRES: logits is not empty; params.Validate() is OK.
  absl::StatusOr<SampledToken> Sample(absl::Span<float> logits, const SamplingParams& params,
                                      uint64_t step, LogitRules* rules,
                                      absl::Span<const uint32_t> allowed = {});
  absl::StatusOr<SampledToken> Sample(absl::Span<const float> logits, const SamplingParams& params,
                                      uint64_t step);

  // Sets token->logprob and the `count` likeliest tokens, token->top. kInternal: a logit is not
  // finite.
  absl::Status AddLogprobs(absl::Span<const float> logits, uint32_t count, SampledToken* token);

  // Returns the `count` likeliest tokens, or all tokens if there are fewer; likeliest first.
  // kInternal: a logit is not finite. REQUIRES: logits is not empty.
  absl::StatusOr<std::vector<TokenLogprob>> Likeliest(absl::Span<const float> logits,
                                                      uint32_t count);

  // Returns the tokens that pass the filters; valid until the next call. They are in descending
  // order of logits if top-k or top-p is on, otherwise in order of ids. REQUIRES: logits are finite
  // and not empty; params.Validate() is OK; temperature > 0.
  absl::Span<const Candidate> Filter(absl::Span<const float> logits, const SamplingParams& params);

 private:
  absl::StatusOr<SampledToken> SampleOf(absl::Span<const float> logits,
                                        const SamplingParams& params, uint64_t step, bool reports);
  absl::StatusOr<SampledToken> SampleAllowed(absl::Span<const float> logits,
                                             const SamplingParams& params, uint64_t step,
                                             absl::Span<const uint32_t> allowed);
  void KeepAll(absl::Span<const float> logits, double greatest, const SamplingParams& params);
  void KeepTopK(absl::Span<const float> logits, uint32_t k);
  void KeepTopP(double top_p);
  void KeepMinP(double min_p);
  void KeepAbove(absl::Span<const float> logits, float bound);
  void WeighCandidates(double greatest, double temperature);
  // Faster versions that examine few logits. If rounding errors leave the result uncertain, they
  // return false or nullopt, and candidates_ is undefined.
  bool TryKeepTopP(absl::Span<const float> logits, double greatest, const SamplingParams& params);
  std::optional<int32_t> DrawFromAll(absl::Span<const float> logits, double greatest,
                                     const SamplingParams& params, double share);
  std::optional<int32_t> DrawFromTopP(absl::Span<const float> logits, double greatest,
                                      const SamplingParams& params, double share);
  size_t SelectByWeight(double wanted, size_t end, double* before);
  double SumOf(absl::Span<const float> logits, double greatest, double temperature);
  int32_t Draw(absl::Span<const float> logits, double greatest, const SamplingParams& params,
               uint64_t step);
  void FillLogprobs(absl::Span<const float> logits, double greatest, uint32_t count,
                    SampledToken* token);

  std::vector<Candidate> candidates_;
  std::vector<double> sums_;  // sums of weights per block
  std::vector<float> row_;    // logits of the allowed tokens
  bool few_ = true;           // top-p kept few tokens in the last call
};

// Returns the token that Sample chooses with temperature 0. kInternal: a logit is not finite.
absl::StatusOr<SampledToken> SampleGreedy(const GreedyToken& greedy);

// Returns a random seed, for requests without a seed. It has 53 bits, so that JSON numbers
// represent it exactly. Each thread has its own generator.
uint64_t NewSeed();

// Returns the seed of answer number `sample`. The first answer uses the request's seed; further
// answers use seeds derived from it.
uint64_t SeedOfSample(uint64_t seed, uint32_t sample);

// Returns the random number in [0, 1) for token `step`; the same on every machine.
double UniformAt(uint64_t seed, uint64_t step);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_SAMPLER_H_
