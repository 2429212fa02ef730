// BeamSearch: searches the likeliest answer to a prompt, like transformers' generate with
// num_beams. Independent of the model: the caller passes the likeliest next tokens of each beam.
//
// A beam is an unfinished answer. Its score is the sum of its tokens' log probabilities (float32,
// as in transformers). Each step ranks the likeliest extensions of all beams, `beams` * max(2, 1 +
// number of end tokens) of them. If an extension that ends the answer is among the best `beams`
// extensions, it becomes a hypothesis. The score of a hypothesis is the sum divided by (number of
// tokens, including the end token)^length_penalty. The best `beams` hypotheses are kept. The best
// extensions that do not end become the next beams. The search is done at max_tokens, or when there
// are `beams` hypotheses and either early_stopping is set, or no beam would beat the worst
// hypothesis if it ended now.
//
// Thread safety: none. Ownership: the search keeps no references to its arguments.
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
// With a larger penalty, the scores of the longest answers overflow float32.
inline constexpr float kMaxLengthPenalty = 4;

// Why an answer ended: kLength: token limit. kEos: end token of the model. kStop: stop string or
// stop token.
enum class FinishReason { kLength, kEos, kStop };

struct BeamOptions {
  uint32_t beams = 1;  // 1: no beam search
  float length_penalty = 1;
  bool early_stopping = false;

  // kInvalidArgument names the field, its value and the limit.
  absl::Status Validate() const;
};

class BeamSearch {
 public:
  struct Beam {
    size_t parent = 0;  // index of the extended beam, among the beams before the step
    std::vector<int32_t> tokens;
    float score = 0;
  };
  struct Hypothesis {
    std::vector<int32_t> tokens;  // tokens of the answer, without the end token
    FinishReason end = FinishReason::kLength;
    float score = 0;
  };
  // When an answer ends. `tokens`: the model's end tokens. `stops`: returns whether an answer ends
  // with its last token, because a stop string is complete; may be null.
  struct Ends {
    std::vector<int32_t> tokens;  // ids of end tokens, ascending
    uint32_t max_tokens = 1;
    std::function<bool(absl::Span<const int32_t>)> stops;
  };

  // REQUIRES: options.Validate() is OK; ends.max_tokens >= 1.
  BeamSearch(const BeamOptions& options, Ends ends);

  // Number of likeliest next tokens that Advance needs for each beam.
  uint32_t candidates() const { return candidates_; }
  // The current beams, best first. Initially one beam without tokens.
  const std::vector<Beam>& beams() const { return beams_; }
  // Extends the beams by one token. `likeliest`: for each beam, its candidates() likeliest next
  // tokens, or the whole vocabulary if that is smaller; likeliest first. REQUIRES: !done().
  void Advance(absl::Span<const std::vector<TokenLogprob>> likeliest);
  bool done() const { return done_; }
  // Returns the best answer. REQUIRES: done().
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
