// LogitRules: what a request says of single tokens: changes their logits before a token is drawn.
//
// Order, as in transformers where it has them: logit_bias is added; the repetition penalty divides
// a positive logit and multiplies another of each token of prompt and answer; frequency (times its
// count) and presence penalty are taken off tokens of the answer; bad tokens, and those that end an
// answer of fewer than min_tokens, cannot be drawn. All in float32. What is drawn depends on the
// logits, the settings and the tokens before alone.
//
// Thread safety: none. Ownership: nothing is borrowed.
#ifndef HEARTH_WORKER_TEXT_LOGIT_RULES_H_
#define HEARTH_WORKER_TEXT_LOGIT_RULES_H_

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace hearth {

inline constexpr size_t kMaxListedTokens = 1024;  // of each of the lists below

struct TokenRules {
  float repetition_penalty = 1;                       // in [0.1, 10]; 1 is off
  float presence_penalty = 0, frequency_penalty = 0;  // in [-2, 2]; 0 is off
  std::vector<std::pair<int32_t, float>> logit_bias;  // ascending ids, biases in [-100, 100]
  std::vector<int32_t> stop_ids, bad_ids;
  uint32_t min_tokens = 0;

  bool are_on() const { return HavePenalties() || !logit_bias.empty() || AreBarring(); }
  // kInvalidArgument naming the field, its value and the limit.
  absl::Status Validate() const;
  // That there are such tokens, and others are left. `eos`: the model's.
  absl::Status CheckIds(int32_t vocab_size, size_t eos) const;

  bool HavePenalties() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
  bool AreBarring() const { return !bad_ids.empty() || min_tokens > 0; }
};

class LogitRules {
 public:
  // Of a text that begins with `prompt`, whose last `answered` tokens are the answer's first ones.
  // `eos`: tokens that end the answer beside the rules' own.
  LogitRules(const TokenRules& rules, absl::Span<const int32_t> eos,
             absl::Span<const int32_t> prompt, uint64_t answered);

  // The answer goes on, `answer` is all that was drawn here.
  void Follow(absl::Span<const int32_t> answer);
  // Changes the logits that the next token is drawn from; Restore gives them back as they were.
  void Apply(absl::Span<float> logits);
  void Restore(absl::Span<float> logits) const;

 private:
  struct Entry {
    int32_t id = 0;
    float bias = 0;
    uint32_t count = 0;  // in the answer
    bool seen = false;   // in prompt or answer
    bool bad = false, ends = false;
    float logit = 0;  // before Apply
  };
  Entry& At(int32_t id);
  float Changed(const Entry& entry, float logit) const;
  void Count(int32_t id);

  const TokenRules rules_;
  const uint64_t answered_;
  size_t followed_ = 0;
  std::vector<Entry> entries_;
  std::unordered_map<int32_t, size_t> places_;  // in entries_, by id
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_LOGIT_RULES_H_
