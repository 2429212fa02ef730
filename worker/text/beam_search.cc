#include "worker/text/beam_search.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

float Penalized(float score, size_t tokens, float length_penalty) {
  return score / static_cast<float>(std::pow(static_cast<double>(tokens), length_penalty));
}

}  // namespace

absl::Status BeamOptions::Validate() const {
  if (beams < 1 || beams > kMaxBeams) {
    return absl::InvalidArgumentError(
        absl::StrCat("beams: must be in [1, ", kMaxBeams, "]; got ", beams));
  }
  // This condition is also true for NaN, so NaN is refused.
  if (!(length_penalty >= -kMaxLengthPenalty && length_penalty <= kMaxLengthPenalty)) {
    return absl::InvalidArgumentError(absl::StrCat("length_penalty: is ", length_penalty,
                                                   "; must be in [", -kMaxLengthPenalty, ", ",
                                                   kMaxLengthPenalty, "]"));
  }
  return absl::OkStatus();
}

BeamSearch::BeamSearch(const BeamOptions& options, Ends ends)
    : options_(options),
      ends_(std::move(ends)),
      candidates_(options.beams * std::max(2U, 1 + static_cast<uint32_t>(ends_.tokens.size()))) {
  assert(options_.Validate().ok() && ends_.max_tokens >= 1);
  assert(std::is_sorted(ends_.tokens.begin(), ends_.tokens.end()));
}

const BeamSearch::Hypothesis& BeamSearch::best() const {
  assert(done_ && !hypotheses_.empty());
  return hypotheses_.front();
}

// Returns the best extensions of all beams. If scores are equal, the extension of the better beam
// comes first, then its likelier token.
std::vector<BeamSearch::Extension> BeamSearch::Likeliest(
    absl::Span<const std::vector<TokenLogprob>> likeliest) const {
  std::vector<Extension> extensions;
  for (size_t beam = 0; beam < beams_.size(); ++beam) {
    for (const TokenLogprob& token : likeliest[beam]) {
      extensions.push_back({beam, token.id, beams_[beam].score + token.logprob});
    }
  }
  std::stable_sort(extensions.begin(), extensions.end(),
                   [](const Extension& a, const Extension& b) { return a.score > b.score; });
  extensions.resize(std::min<size_t>(extensions.size(), candidates_));
  return extensions;
}

std::optional<FinishReason> BeamSearch::EndOf(const std::vector<int32_t>& tokens) const {
  if (std::binary_search(ends_.tokens.begin(), ends_.tokens.end(), tokens.back())) {
    return FinishReason::kEos;
  }
  if (ends_.stops != nullptr && ends_.stops(tokens)) return FinishReason::kStop;
  if (tokens.size() == ends_.max_tokens) return FinishReason::kLength;
  return std::nullopt;
}

void BeamSearch::Advance(absl::Span<const std::vector<TokenLogprob>> likeliest) {
  assert(!done_ && likeliest.size() == beams_.size());
  std::vector<Beam> next;
  size_t rank = 0;
  for (const Extension& extension : Likeliest(likeliest)) {
    const bool may_end = rank++ < options_.beams;
    if (!may_end && next.size() == options_.beams) break;
    Beam beam{extension.beam, beams_[extension.beam].tokens, extension.score};
    beam.tokens.push_back(extension.token);
    const std::optional<FinishReason> end = EndOf(beam.tokens);
    if (!end.has_value()) {
      if (next.size() < options_.beams) next.push_back(std::move(beam));
    } else if (may_end) {
      const float score = Penalized(beam.score, beam.tokens.size(), options_.length_penalty);
      if (*end == FinishReason::kEos) beam.tokens.pop_back();
      Keep({std::move(beam.tokens), *end, score});
    }
  }
  assert(next.size() <= options_.beams && hypotheses_.size() <= options_.beams);
  beams_ = std::move(next);
  const bool all_ended = hypotheses_.size() == options_.beams;
  done_ = beams_.empty() || (all_ended && (options_.early_stopping || !MayImprove()));
  assert(!done_ || !hypotheses_.empty());
}

// Inserts the hypothesis in the order of scores. If scores are equal, the older hypothesis comes
// first.
void BeamSearch::Keep(Hypothesis hypothesis) {
  const auto place = std::find_if(hypotheses_.begin(), hypotheses_.end(),
                                  [&](const auto& kept) { return kept.score < hypothesis.score; });
  hypotheses_.insert(place, std::move(hypothesis));
  assert(std::is_sorted(hypotheses_.begin(), hypotheses_.end(),
                        [](const auto& a, const auto& b) { return a.score > b.score; }));
  if (hypotheses_.size() > options_.beams) hypotheses_.pop_back();
}

// Returns whether the best beam, scored as if it ended now, beats the worst hypothesis. This is an
// estimate: with a positive length penalty, a longer answer may score better.
bool BeamSearch::MayImprove() const {
  assert(!beams_.empty() && !hypotheses_.empty());
  const Beam& best = beams_.front();
  return Penalized(best.score, best.tokens.size(), options_.length_penalty) >
         hypotheses_.back().score;
}

}  // namespace hearth
