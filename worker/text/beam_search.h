// BeamSearch: searches the likeliest answer to a prompt, like transformers' generate with
// num_beams. Does not know the model: the caller passes the likely next tokens, and the search
// chooses the beams.
//
// A beam is an unfinished answer; its score is the sum of its tokens' log probabilities (float32,
// as in transformers). Each step ranks the likeliest extensions of all beams: `beams` times max(2,
// 1 + end tokens) of them. An extension that ends and ranks among the first `beams` becomes a
// hypothesis; its score is divided by (tokens, including the end token)^length_penalty. The best
// `beams` hypotheses are kept. The best extensions that do not end become the next beams. The
// search is done if there are `beams` hypotheses and either early_stopping is set or no beam,
// scored as if it ended now, beats the worst hypothesis; and at max_tokens.
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
// Beyond this, scores of the longest answers overflow float32.
inline constexpr float kMaxLengthPenalty = 4;

// Why an answer ends: token limit, end token, or stop string or stop token.
enum class FinishReason { kLength, kEos, kStop };

struct BeamOptions {
  uint32_t beams = 1;  // 1: no search
  float length_penalty = 1;
  bool early_stopping = false;

  // kInvalidArgument names the field, its value and the limit.
  absl::Status Validate() const;
};

class BeamSearch {
 public:
  struct Beam {
    size_t parent = 0;  // index of its parent beam before the step
    std::vector<int32_t> tokens;
    float score = 0;
  };
  struct Hypothesis {
    std::vector<int32_t> tokens;  // without the end token
    FinishReason end = FinishReason::kLength;
    float score = 0;
  };
  // When answers end. `tokens`: end tokens. `stops`: returns whether an answer ends with its last
  // token; may be null.
  struct Ends {
    std::vector<int32_t> tokens;  // ascending
    uint32_t max_tokens = 1;
    std::function<bool(absl::Span<const int32_t>)> stops;
  };

  // REQUIRES: options.Validate() is OK; ends.max_tokens >= 1.
  BeamSearch(const BeamOptions& options, Ends ends);

  // Number of likeliest tokens of each beam that a step needs.
  uint32_t candidates() const { return candidates_; }
  // The current beams, best first. Initially one beam without tokens.
  const std::vector<Beam>& beams() const { return beams_; }
  // Takes a step. `likeliest`: for each beam its likeliest next tokens, likeliest first;
  // candidates() of them, or the whole vocabulary. REQUIRES: not done.
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
  std::vector<Hypothesis> hypotheses_;  // best first
  bool done_ = false;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_BEAM_SEARCH_H_
