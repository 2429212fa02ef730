#include "worker/text/sampler.h"

#include <algorithm>
#include <cassert>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/kernels/logit_rows.h"

namespace hearth {
namespace {

// Number of tokens that KeepTopP sorts first; each further batch is four times as large. Top-p
// usually keeps tens of tokens.
constexpr size_t kFirstSorted = 256;

bool Better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Returns a bound on the difference between two sums of the same weights, added in different
// orders, whose value is about `sum`.
double ErrorOf(absl::Span<const float> logits, double sum) {
  return kWeightError * static_cast<double>(logits.size() + 16) * sum;
}

absl::Status NotFinite(absl::Span<const float> logits) {
  const auto bad = std::find_if(logits.begin(), logits.end(),
                                [](float logit) { return !(std::fabs(logit) <= FLT_MAX); });
  return absl::InternalError(
      absl::StrCat("logits[", bad - logits.begin(), "] is ", *bad, ": not a finite number"));
}

// Finds the k best candidates, best first, with a heap whose top is the worst. Among equal logits
// the lower id is better, so a logit equal to the worst can be skipped.
void FindTopK(absl::Span<const float> logits, size_t k, std::vector<Candidate>* heap) {
  heap->clear();
  const auto count = static_cast<int64_t>(logits.size());
  for (int64_t i = 0; i < count; ++i) {
    if (heap->size() == k) {
      i = NextGreater(logits.data(), i, count, heap->front().logit);
      if (i == count) break;
      std::pop_heap(heap->begin(), heap->end(), Better);
      heap->pop_back();
    }
    heap->push_back({static_cast<int32_t>(i), logits[static_cast<size_t>(i)], 0});
    std::push_heap(heap->begin(), heap->end(), Better);
  }
  std::sort_heap(heap->begin(), heap->end(), Better);
}

// Returns the log probability as a float if every log_sum within `error` rounds to the same float,
// else nullopt.
std::optional<float> LogprobOf(float logit, double log_sum, double error) {
  const auto low = static_cast<float>(logit - (log_sum + error));
  const auto high = static_cast<float>(logit - (log_sum - error));
  return low == high ? std::optional<float>(low) : std::nullopt;
}

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15U;

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

}  // namespace

absl::Status SamplingParams::Validate() const {
  // These conditions are also true for NaN, so NaN is refused.
  if (!(temperature >= 0 && temperature <= kMaxTemperature)) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.temperature: is ", temperature,
                                                   "; must be in [0, ", kMaxTemperature, "]"));
  }
  if (!(top_p >= 0 && top_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.top_p: is ", top_p, "; must be 0 (off) or in (0, 1]"));
  }
  if (!(min_p >= 0 && min_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.min_p: is ", min_p, "; must be in [0, 1]"));
  }
  if (logprobs > kMaxTopLogprobs) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.logprobs: is ", logprobs,
                                                   "; must be in [0, ", kMaxTopLogprobs, "]"));
  }
  if (prompt_logprobs.value_or(0) > kMaxTopLogprobs) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.prompt_logprobs: is ",
                                                   *prompt_logprobs, "; must be in [0, ",
                                                   kMaxTopLogprobs, "]"));
  }
  return rules.Validate();
}

double UniformAt(uint64_t seed, uint64_t step) {
  // Mix the seed first, so that neighbouring seeds give unrelated numbers.
  const uint64_t bits = Mix(Mix(seed + kGolden) + (step + 1) * kGolden);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

absl::StatusOr<SampledToken> Sampler::Sample(absl::Span<float> logits, const SamplingParams& params,
                                             uint64_t step, LogitRules* rules,
                                             absl::Span<const uint32_t> allowed) {
  if (rules == nullptr && allowed.empty()) {
    return Sample(absl::Span<const float>(logits), params, step);
  }
  if (rules != nullptr) rules->Apply(logits);
  absl::StatusOr<SampledToken> token = allowed.empty()
                                           ? SampleOf(logits, params, step, /*reports=*/false)
                                           : SampleAllowed(logits, params, step, allowed);
  if (rules != nullptr) rules->Restore(logits);
  if (!token.ok() || !params.reports()) return token;
  if (absl::Status added = AddLogprobs(logits, params.logprobs, &*token); !added.ok()) return added;
  return token;
}

absl::StatusOr<SampledToken> Sampler::SampleAllowed(absl::Span<const float> logits,
                                                    const SamplingParams& params, uint64_t step,
                                                    absl::Span<const uint32_t> allowed) {
  assert(allowed.size() * 32 >= logits.size());
  row_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    // Keep non-finite logits non-finite, so that SampleOf reports them.
    const bool may = ((allowed[i / 32] >> (i % 32)) & 1) != 0;
    row_[i] = may ? logits[i] : logits[i] * 0.0F - FLT_MAX;
  }
  absl::StatusOr<SampledToken> token = SampleOf(row_, params, step, /*reports=*/false);
  if (!token.ok() || row_[static_cast<size_t>(token->id)] > -FLT_MAX) return token;
  return absl::InvalidArgumentError(
      "sampling.bad_token_ids: must leave a token that the grammar allows; none is left");
}

absl::Status Sampler::AddLogprobs(absl::Span<const float> logits, uint32_t count,
                                  SampledToken* token) {
  const LogitScan scan = ScanLogits(logits.data(), static_cast<int64_t>(logits.size()));
  if (!scan.all_finite) return NotFinite(logits);
  FillLogprobs(logits, logits[static_cast<size_t>(scan.greatest)], count, token);
  return absl::OkStatus();
}

absl::StatusOr<SampledToken> Sampler::Sample(absl::Span<const float> logits,
                                             const SamplingParams& params, uint64_t step) {
  return SampleOf(logits, params, step, params.reports());
}

absl::StatusOr<SampledToken> Sampler::SampleOf(absl::Span<const float> logits,
                                               const SamplingParams& params, uint64_t step,
                                               bool reports) {
  assert(!logits.empty());
  assert(params.Validate().ok());
  const LogitScan scan = ScanLogits(logits.data(), static_cast<int64_t>(logits.size()));
  if (!scan.all_finite) return NotFinite(logits);
  const double greatest = logits[static_cast<size_t>(scan.greatest)];
  SampledToken token;
  assert(scan.greatest >= 0 && scan.greatest < static_cast<int64_t>(logits.size()));
  token.id = params.temperature == 0 ? static_cast<int32_t>(scan.greatest)
                                     : Draw(logits, greatest, params, step);
  if (reports) FillLogprobs(logits, greatest, params.logprobs, &token);
  return token;
}

absl::StatusOr<std::vector<TokenLogprob>> Sampler::Likeliest(absl::Span<const float> logits,
                                                             uint32_t count) {
  assert(!logits.empty());
  const LogitScan scan = ScanLogits(logits.data(), static_cast<int64_t>(logits.size()));
  if (!scan.all_finite) return NotFinite(logits);
  SampledToken token;
  token.id = static_cast<int32_t>(scan.greatest);
  FillLogprobs(logits, logits[static_cast<size_t>(scan.greatest)], count, &token);
  return std::move(token.top);
}

int32_t Sampler::Draw(absl::Span<const float> logits, double greatest, const SamplingParams& params,
                      uint64_t step) {
  const double share = UniformAt(params.seed, step);
  const bool top_k = params.top_k > 0 && params.top_k < logits.size();
  const bool top_p = params.top_p > 0 && params.top_p < 1;
  const bool min_p = params.min_p > 0;
  if (top_p && !top_k && (few_ || min_p)) few_ = TryKeepTopP(logits, greatest, params);
  const bool kept_few = top_p && !top_k && few_;
  if (!top_k && !kept_few && !min_p) {
    const std::optional<int32_t> drawn = top_p ? DrawFromTopP(logits, greatest, params, share)
                                               : DrawFromAll(logits, greatest, params, share);
    if (drawn.has_value()) return *drawn;
  }
  if (!kept_few) KeepAll(logits, greatest, params);
  if (min_p) KeepMinP(params.min_p);
  int32_t id = 0;
  double sum = 0, reached = 0;
  const absl::Span<const Candidate> kept = candidates_;
  for (const Candidate& candidate : kept) sum += candidate.weight;
  const double point = share * sum;
  for (const Candidate& candidate : kept) {
    // If rounding leaves `reached` below `point` at the end, return the last token with a positive
    // weight.
    if (candidate.weight > 0) id = candidate.id;
    reached += candidate.weight;
    if (reached > point) break;
  }
  return id;
}

double Sampler::SumOf(absl::Span<const float> logits, double greatest, double temperature) {
  sums_.resize((logits.size() + kWeightBlock - 1) / kWeightBlock);
  SumWeights(logits.data(), static_cast<int64_t>(logits.size()), greatest, temperature,
             sums_.data());
  return std::accumulate(sums_.begin(), sums_.end(), 0.0);
}

// Samples from all tokens in order of ids. Computes the weights of single tokens in one block only.
std::optional<int32_t> Sampler::DrawFromAll(absl::Span<const float> logits, double greatest,
                                            const SamplingParams& params, double share) {
  const double sum = SumOf(logits, greatest, params.temperature);
  const double error = 2 * ErrorOf(logits, sum), wanted = share * sum;
  double before = 0;
  size_t block = 0;
  while (block + 1 < sums_.size() && before + sums_[block] <= wanted) before += sums_[block++];
  const size_t begin = block * kWeightBlock, end = std::min(begin + kWeightBlock, logits.size());
  for (size_t i = begin; i < end; ++i) {
    const double after = before + std::exp((logits[i] - greatest) / params.temperature);
    if (after > wanted) {
      const bool no_doubt = before + error < wanted && wanted + error < after;
      return no_doubt ? std::optional<int32_t>(static_cast<int32_t>(i)) : std::nullopt;
    }
    before = after;
  }
  return std::nullopt;
}

// Finds the candidate whose weight raises the sum above `wanted`, if candidates_[0, end) are added
// best first. Returns the number of better candidates, and their sum in `before`. Moves the better
// candidates to the front, in any order.
size_t Sampler::SelectByWeight(double wanted, size_t end, double* before) {
  *before = 0;
  size_t begin = 0;
  const auto at = [&](size_t place) { return candidates_.begin() + place; };
  while (end - begin > kFirstSorted) {
    const size_t middle = begin + (end - begin) / 2;
    std::nth_element(at(begin), at(middle), at(end), Better);
    double sum = 0;
    for (size_t i = begin; i < middle; ++i) sum += candidates_[i].weight;
    if (*before + sum > wanted) {
      end = middle;
    } else {
      *before += sum;
      begin = middle;
    }
  }
  std::sort(at(begin), at(end), Better);
  while (begin < end && *before + candidates_[begin].weight <= wanted) {
    *before += candidates_[begin++].weight;
  }
  return begin;
}

// Samples from the tokens that top-p keeps, if they are many, by repeated halving instead of
// sorting.
std::optional<int32_t> Sampler::DrawFromTopP(absl::Span<const float> logits, double greatest,
                                             const SamplingParams& params, double share) {
  KeepTopK(logits, 0);
  WeighCandidates(greatest, params.temperature);
  double sum = 0, before = 0;
  for (const Candidate& candidate : candidates_) sum += candidate.weight;
  const double error = 2 * ErrorOf(logits, sum);
  // Returns the index at which the ordered sum exceeds `wanted`, or nullopt if rounding leaves it
  // uncertain.
  const auto find = [&](double wanted, size_t end) -> std::optional<size_t> {
    const size_t place = SelectByWeight(wanted, end, &before);
    if (place == end) return std::nullopt;
    const double after = before + candidates_[place].weight;
    const bool no_doubt = before + error < wanted && wanted + error < after;
    return no_doubt ? std::optional<size_t>(place) : std::nullopt;
  };
  const std::optional<size_t> last = find(params.top_p * sum, candidates_.size());
  if (!last.has_value()) return std::nullopt;
  few_ = *last < kFirstSorted;
  const std::optional<size_t> drawn = find(share * (before + candidates_[*last].weight), *last + 1);
  if (!drawn.has_value()) return std::nullopt;
  return candidates_[*drawn].id;
}

void Sampler::FillLogprobs(absl::Span<const float> logits, double greatest, uint32_t count,
                           SampledToken* token) {
  const double about = SumOf(logits, greatest, /*temperature=*/1);
  double log_sum = greatest + std::log(about);
  double error = 2 * ErrorOf(logits, about) / about + kWeightError * std::fabs(log_sum);
  std::vector<Candidate> best;
  if (count > 0) FindTopK(logits, std::min<size_t>(count, logits.size()), &best);
  const auto fill = [&] {
    const std::optional<float> own =
        LogprobOf(logits[static_cast<size_t>(token->id)], log_sum, error);
    if (!own.has_value()) return false;
    token->logprob = *own;
    token->top.clear();
    for (const Candidate& candidate : best) {
      const std::optional<float> logprob = LogprobOf(candidate.logit, log_sum, error);
      if (!logprob.has_value()) return false;
      token->top.push_back({candidate.id, *logprob});
    }
    return true;
  };
  if (fill()) return;
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - greatest);
  log_sum = greatest + std::log(sum);
  error = 0;
  fill();
}

void Sampler::WeighCandidates(double greatest, double temperature) {
  for (Candidate& candidate : candidates_) {
    candidate.weight = std::exp((candidate.logit - greatest) / temperature);
  }
}

absl::Span<const Candidate> Sampler::Filter(absl::Span<const float> logits,
                                            const SamplingParams& params) {
  assert(params.temperature > 0);
  const double greatest = logits[static_cast<size_t>(
      ScanLogits(logits.data(), static_cast<int64_t>(logits.size())).greatest)];
  const bool top_k = params.top_k > 0 && params.top_k < logits.size();
  const bool top_p = params.top_p > 0 && params.top_p < 1;
  if (top_k || !top_p || !TryKeepTopP(logits, greatest, params)) KeepAll(logits, greatest, params);
  if (params.min_p > 0) KeepMinP(params.min_p);
  return candidates_;
}

// Applies top-k and top-p, and if only min-p is on, a bound on the logits. Leaves candidates_ in
// the order that Filter describes.
void Sampler::KeepAll(absl::Span<const float> logits, double greatest,
                      const SamplingParams& params) {
  const bool top_p = params.top_p > 0 && params.top_p < 1;
  if (params.min_p > 0 && params.top_k == 0 && !top_p) {
    const double least = greatest + params.temperature * std::log(params.min_p);
    KeepAbove(logits, static_cast<float>(least - 1e-6 * (std::fabs(least) + 1)));
  } else {
    KeepTopK(logits, params.top_k);
  }
  WeighCandidates(greatest, params.temperature);
  if (top_p) KeepTopP(params.top_p);
}

void Sampler::KeepAbove(absl::Span<const float> logits, float bound) {
  const auto count = static_cast<int64_t>(logits.size());
  candidates_.clear();
  for (int64_t i = NextGreater(logits.data(), 0, count, bound); i < count;
       i = NextGreater(logits.data(), i + 1, count, bound)) {
    candidates_.push_back({static_cast<int32_t>(i), logits[static_cast<size_t>(i)], 0});
  }
}

// Removes candidates with a weight below `min_p`: the likeliest token has weight 1.
void Sampler::KeepMinP(double min_p) {
  const auto is_less = [min_p](const Candidate& one) { return one.weight < min_p; };
  candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), is_less),
                    candidates_.end());
}

void Sampler::KeepTopK(absl::Span<const float> logits, uint32_t k) {
  if (k > 0 && k < logits.size()) return FindTopK(logits, k, &candidates_);
  candidates_.clear();
  candidates_.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates_.push_back({static_cast<int32_t>(i), logits[i], 0});
  }
}

// Applies top-p to all tokens if the first kFirstSorted tokens suffice. Returns false if they do
// not suffice, or if rounding leaves the result uncertain.
bool Sampler::TryKeepTopP(absl::Span<const float> logits, double greatest,
                          const SamplingParams& params) {
  if (logits.size() <= kFirstSorted) return false;
  const double sum = SumOf(logits, greatest, params.temperature);
  const double wanted = params.top_p * sum, error = 2 * ErrorOf(logits, sum);
  FindTopK(logits, kFirstSorted, &candidates_);
  WeighCandidates(greatest, params.temperature);
  double reached = 0;
  for (size_t kept = 0; kept < candidates_.size(); ++kept) {
    reached += candidates_[kept].weight;
    if (std::fabs(reached - wanted) <= error) return false;
    if (reached < wanted) continue;
    candidates_.resize(kept + 1);
    return true;
  }
  return false;
}

// Keeps the smallest set of best tokens whose weights reach `top_p` of the sum; at least one token.
void Sampler::KeepTopP(double top_p) {
  double sum = 0;
  for (const Candidate& candidate : candidates_) sum += candidate.weight;
  const double wanted = top_p * sum;
  double reached = 0;
  size_t sorted = 0, kept = 0;
  for (size_t batch = kFirstSorted; reached < wanted && sorted < candidates_.size(); batch *= 4) {
    const size_t end = std::min(candidates_.size(), sorted + batch);
    const auto from = candidates_.begin() + sorted, to = candidates_.begin() + end;
    if (to != candidates_.end()) std::nth_element(from, to, candidates_.end(), Better);
    std::sort(from, to, Better);
    sorted = end;
    while (kept < sorted && reached < wanted) reached += candidates_[kept++].weight;
  }
  assert(kept >= 1);
  candidates_.resize(kept);
}

absl::StatusOr<SampledToken> SampleGreedy(const GreedyToken& greedy) {
  if (!greedy.is_finite) {
    return absl::InternalError(absl::StrCat("logits[", greedy.id, "] is not a finite number"));
  }
  SampledToken token;
  token.id = greedy.id;
  return token;
}

uint64_t NewSeed() {
  static thread_local std::mt19937_64 seeds{std::random_device{}()};
  return seeds() >> 11;
}

uint64_t SeedOfSample(uint64_t seed, uint32_t sample) {
  return sample == 0 ? seed : Mix(Mix(seed) + sample * kGolden);
}

}  // namespace hearth
