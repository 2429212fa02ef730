// Sampler: one token from the last position's logits.
//
// Order of the filters, as in transformers: temperature, then top-k, then top-p over what top-k
// left, then min-p: tokens at least min_p times as likely as the likeliest. Equal logits rank by
// id, lowest first, so that exactly k tokens pass top-k. LogitRules change the logits before all
// this.
//
// Randomness is counter based: the draw for new token number `step` depends on (seed, step) and the
// logits only, not on what was drawn before; a resumed sequence goes on as if nothing had happened.
// The number is splitmix64's output, 53 bits of it; weights are IEEE doubles added in a fixed
// order. Equal logits, parameters and step give the same token on every machine, except where exp()
// of two C libraries differs in its last bit right at the drawn point.
//
// That order is a vocabulary long. Where sums in another order, with a bound on their error, leave
// no doubt which token it gives, they are all that is computed; where they do, it is followed.
//
// Thread safety: one thread at a time (it keeps scratch space); copies are independent.
// Ownership: nothing is kept of the logits.
#ifndef HEARTH_WORKER_TEXT_SAMPLER_H_
#define HEARTH_WORKER_TEXT_SAMPLER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/text/logit_rules.h"

namespace hearth {

// Logits differ by tens: from here on nearly every token is as likely as any other, which only a
// mistake asks for.
inline constexpr float kMaxTemperature = 100.0F;
inline constexpr uint32_t kMaxTopLogprobs = 20;

struct SamplingParams {
  float temperature = 0;  // 0 is greedy: the other filters then change nothing
  uint32_t top_k = 0;     // 0 is off
  float top_p = 0;        // 0 is off, else in (0, 1]
  float min_p = 0;        // in [0, 1]; 0 is off
  uint64_t seed = 0;
  uint32_t logprobs = 0;         // alternatives reported with each token; 0 is off
  bool report_logprobs = false;  // report the chosen token's logprob
  // Report the prompt's tokens' logprobs, with so many alternatives.
  std::optional<uint32_t> prompt_logprobs;
  TokenRules rules;

  // Whether the chosen tokens' log probabilities are reported.
  bool reports() const { return report_logprobs || logprobs > 0; }
  // kInvalidArgument naming the field, its value and the limit.
  absl::Status Validate() const;
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

// Logprobs are those of the model: of the raw logits, before rules, temperature and filters.
struct SampledToken {
  int32_t id = 0;
  float logprob = 0;              // 0 unless report_logprobs or logprobs was asked for
  std::vector<TokenLogprob> top;  // `logprobs` of them, most likely first
  uint32_t sample = 0;            // of the request's answers
};

// A token that passed the filters, and exp((logit - greatest logit) / temperature).
struct Candidate {
  int32_t id = 0;
  float logit = 0;
  double weight = 0;
};

class Sampler {
 public:
  // kInternal when a logit is not a finite number: a broken model must not pass for a creative one.
  // `rules`: what changes the logits, on a mutable row that is as it was afterwards; null: nothing.
  // REQUIRES: logits is not empty; params.Validate() is OK.
  absl::StatusOr<SampledToken> Sample(absl::Span<float> logits, const SamplingParams& params,
                                      uint64_t step, LogitRules* rules);
  absl::StatusOr<SampledToken> Sample(absl::Span<const float> logits, const SamplingParams& params,
                                      uint64_t step);

  // Sets the log probability of token->id, and the `count` likeliest tokens. kInternal as above.
  absl::Status AddLogprobs(absl::Span<const float> logits, uint32_t count, SampledToken* token);

  // The `count` likeliest tokens, or all there are, the likeliest first. kInternal as above.
  // REQUIRES: logits is not empty.
  absl::StatusOr<std::vector<TokenLogprob>> Likeliest(absl::Span<const float> logits,
                                                      uint32_t count);

  // The tokens among which Sample would draw. Valid until the next call. In descending order when
  // top-k or top-p is on, else by id. REQUIRES: as above; temperature > 0; logits finite.
  absl::Span<const Candidate> Filter(absl::Span<const float> logits, const SamplingParams& params);

 private:
  absl::StatusOr<SampledToken> SampleOf(absl::Span<const float> logits,
                                        const SamplingParams& params, uint64_t step, bool reports);
  void KeepAll(absl::Span<const float> logits, double greatest, const SamplingParams& params);
  void KeepTopK(absl::Span<const float> logits, uint32_t k);
  void KeepTopP(double top_p);
  void KeepMinP(double min_p);
  void KeepAbove(absl::Span<const float> logits, float bound);
  void WeighCandidates(double greatest, double temperature);
  // The same without a look at each logit. False: there is doubt, and nothing is of use.
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
  std::vector<double> sums_;  // of weights, by block
  bool few_ = true;           // top-p kept few tokens the last time, and may again
};

// The seed of a request that names none: 53 bits, which every JSON reader holds. Of each thread's
// own generator.
uint64_t NewSeed();

// Of a request's answers the first has its seed, the others have seeds that follow from it.
uint64_t SeedOfSample(uint64_t seed, uint32_t sample);

// The number in [0, 1) that decides the draw: the same on every machine.
double UniformAt(uint64_t seed, uint64_t step);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_SAMPLER_H_
