// BeamSearch: the search for the likeliest answer to one prompt, as transformers' generate has it
// with num_beams, without a model: it is told what may come next, and says which beams go on.
//
// A beam is an answer that goes on; its score is the sum of its tokens' log probabilities, float32
// as transformers'. A step weighs the likeliest candidates of all beams together, (1 + end tokens)
// times as many as there are beams, and twice as many at least. Those among the first `beams` of
// them that end are hypotheses, with a score divided by their number of tokens (the end token
// counts) to the power of `length_penalty`; the best `beams` hypotheses are kept. Of those that do
// not end the first go on. It is over when there are `beams` hypotheses and `early_stopping` is on,
// or no beam's score, divided as if it ended now, is above the least of them; and at the most
// tokens.
//
// Thread safety: none. Ownership: nothing is borrowed.
#ifndef HEARTH_WORKER_TEXT_BEAM_SEARCH_H_
#define HEARTH_WORKER_TEXT_BEAM_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/text/sampler.h"

namespace hearth {

inline constexpr uint32_t kMaxBeams = 16;
// Beyond it scores are no floats for the longest answers.
inline constexpr float kMaxLengthPenalty = 4;

// Why an answer ends: it has as many tokens as it may, an end token, or a stop string or token.
enum class FinishReason { kLength, kEos, kStop };

struct BeamOptions {
  uint32_t beams = 1;  // 1: no search
  float length_penalty = 1;
  bool early_stopping = false;

  // kInvalidArgument naming the field, its value and the limit.
  absl::Status Validate() const;
};

class BeamSearch {
 public:
  struct Beam {
    size_t parent = 0;  // its place among the beams before the step
    std::vector<int32_t> tokens;
    float score = 0;
  };
  struct Hypothesis {
    std::vector<int32_t> tokens;  // without the end token
    FinishReason end = FinishReason::kLength;
    float score = 0;
  };
  // Where answers end, beside their end tokens. `stops`: whether one ends with its last token; may
  // be null.
  struct Ends {
    std::vector<int32_t> tokens;  // ascending
    uint32_t max_tokens = 1;
    std::function<bool(absl::Span<const int32_t>)> stops;
  };

  // REQUIRES: options.Validate() is OK; ends.max_tokens >= 1.
  BeamSearch(const BeamOptions& options, Ends ends);

  // So many of the likeliest tokens of each beam are enough for a step.
  uint32_t candidates() const { return candidates_; }
  // The beams that go on, the best first; at first one without tokens.
  const std::vector<Beam>& beams() const { return beams_; }
  // A step: `likeliest` are the tokens that may come next of each beam, the likeliest first, as
  // many as candidates() or all there are. REQUIRES: not done.
  void Advance(absl::Span<const std::vector<TokenLogprob>> likeliest);
  bool done() const { return done_; }
  // REQUIRES: done.
  const Hypothesis& best() const;

 private:
  struct Extension {
    size_t beam = 0;
    int32_t token = 0;
    float score = 0;
  };
  std::vector<Extension> Likeliest(absl::Span<const std::vector<TokenLogprob>> likeliest) const;
  std::optional<FinishReason> EndOf(const std::vector<int32_t>& tokens) const;
  void Keep(Hypothesis hypothesis);
  bool MayImprove() const;

  const BeamOptions options_;
  const Ends ends_;
  const uint32_t candidates_;
  std::vector<Beam> beams_ = {{}};
  std::vector<Hypothesis> hypotheses_;  // the best first
  bool done_ = false;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_BEAM_SEARCH_H_
