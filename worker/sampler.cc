#include "worker/sampler.h"

#include <algorithm>
#include <cassert>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// The usual top-p sets have tens of tokens: so many are sorted first, then four times as many.
constexpr size_t kFirstSorted = 256;

bool Better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The first of the greatest logits.
size_t IndexOfGreatest(absl::Span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

absl::Status CheckFinite(absl::Span<const float> logits) {
  // A comparison with NaN is false; without an early way out the loop is one vector instruction for
  // several logits.
  size_t finite = 0;
  for (const float logit : logits) finite += std::fabs(logit) <= FLT_MAX;
  if (finite == logits.size()) return absl::OkStatus();
  const auto bad = std::find_if(logits.begin(), logits.end(),
                                [](float logit) { return !(std::fabs(logit) <= FLT_MAX); });
  return absl::InternalError(
      absl::StrCat("logits[", bad - logits.begin(), "] is ", *bad, ": not a finite number"));
}

// A heap of the k best seen so far, the worst of them on top: nearly every logit costs one
// comparison.
template <typename Visit>
void VisitTopK(absl::Span<const float> logits, size_t k, std::vector<Candidate>* heap,
               const Visit& visit) {
  heap->clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate candidate{static_cast<int32_t>(i), logits[i], 0};
    if (heap->size() == k) {
      if (!Better(candidate, heap->front())) continue;
      std::pop_heap(heap->begin(), heap->end(), Better);
      heap->back() = candidate;
    } else {
      heap->push_back(candidate);
    }
    std::push_heap(heap->begin(), heap->end(), Better);
  }
  std::sort_heap(heap->begin(), heap->end(), Better);
  for (Candidate& candidate : *heap) visit(&candidate);
}

void FillLogprobs(absl::Span<const float> logits, uint32_t count, SampledToken* token) {
  const double greatest = logits[IndexOfGreatest(logits)];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - greatest);
  const double log_sum = greatest + std::log(sum);
  token->logprob = static_cast<float>(logits[token->id] - log_sum);
  if (count == 0) return;
  std::vector<Candidate> heap;
  VisitTopK(logits, std::min<size_t>(count, logits.size()), &heap, [&](const Candidate* best) {
    token->top.push_back({best->id, static_cast<float>(best->logit - log_sum)});
  });
}

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15U;

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

}  // namespace

absl::Status SamplingParams::Validate() const {
  // Written so that NaN fails.
  if (!(temperature >= 0 && temperature <= kMaxTemperature)) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.temperature: is ", temperature,
                                                   "; must be in [0, ", kMaxTemperature, "]"));
  }
  if (!(top_p >= 0 && top_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.top_p: is ", top_p, "; must be 0 (off) or in (0, 1]"));
  }
  if (logprobs > kMaxTopLogprobs) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.logprobs: is ", logprobs,
                                                   "; must be in [0, ", kMaxTopLogprobs, "]"));
  }
  return absl::OkStatus();
}

double UniformAt(uint64_t seed, uint64_t step) {
  // The seed is mixed first: the streams of neighbouring seeds share nothing.
  const uint64_t bits = Mix(Mix(seed + kGolden) + (step + 1) * kGolden);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

absl::StatusOr<SampledToken> Sampler::Sample(absl::Span<const float> logits,
                                             const SamplingParams& params, uint64_t step) {
  assert(!logits.empty());
  assert(params.Validate().ok());
  if (absl::Status status = CheckFinite(logits); !status.ok()) return status;
  SampledToken token;
  if (params.temperature == 0) {
    token.id = static_cast<int32_t>(IndexOfGreatest(logits));
  } else {
    const absl::Span<const Candidate> kept = Filter(logits, params);
    double sum = 0;
    for (const Candidate& candidate : kept) sum += candidate.weight;
    const double point = UniformAt(params.seed, step) * sum;
    double reached = 0;
    for (const Candidate& candidate : kept) {
      // Rounding may leave `reached` below the point at the end: the last possible token then.
      if (candidate.weight > 0) token.id = candidate.id;
      reached += candidate.weight;
      if (reached > point) break;
    }
  }
  if (params.report_logprobs || params.logprobs > 0) FillLogprobs(logits, params.logprobs, &token);
  return token;
}

absl::Span<const Candidate> Sampler::Filter(absl::Span<const float> logits,
                                            const SamplingParams& params) {
  assert(params.temperature > 0);
  KeepTopK(logits, params.top_k);
  const double greatest = logits[IndexOfGreatest(logits)];
  for (Candidate& candidate : candidates_) {
    candidate.weight = std::exp((candidate.logit - greatest) / params.temperature);
  }
  if (params.top_p > 0 && params.top_p < 1) KeepTopP(params.top_p);
  return candidates_;
}

void Sampler::KeepTopK(absl::Span<const float> logits, uint32_t k) {
  if (k > 0 && k < logits.size()) {
    VisitTopK(logits, k, &candidates_, [](Candidate*) {});
    return;
  }
  candidates_.clear();
  candidates_.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates_.push_back({static_cast<int32_t>(i), logits[i], 0});
  }
}

// Keeps the fewest best tokens whose weights reach `top_p` of the whole, at least one.
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

uint64_t SeedOfSample(uint64_t seed, uint32_t sample) {
  return sample == 0 ? seed : Mix(Mix(seed) + sample * kGolden);
}

}  // namespace hearth
