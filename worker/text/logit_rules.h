// LogitRules: a request's rules for single tokens, which change their logits before a token is
// drawn.
//
// Order, as in transformers: add logit_bias; for each token of prompt and answer, the repetition
// penalty divides a positive logit and multiplies a negative one; for each token of the answer,
// subtract the frequency penalty times its count, and the presence penalty; bad tokens, and tokens
// that end an answer shorter than min_tokens, are never drawn. All in float32. The drawn token
// depends only on the logits, the settings and the earlier tokens.
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

inline constexpr size_t kMaxListedTokens = 1024;  // limit of each list

struct TokenRules {
  float repetition_penalty = 1;                       // in [0.1, 10]; 1 is off
  float presence_penalty = 0, frequency_penalty = 0;  // in [-2, 2]; 0 is off
  std::vector<std::pair<int32_t, float>> logit_bias;  // ascending ids, biases in [-100, 100]
  std::vector<int32_t> stop_ids, bad_ids;
  uint32_t min_tokens = 0;

  bool are_on() const { return HavePenalties() || !logit_bias.empty() || AreBarring(); }
  // kInvalidArgument names the field, its value and the limit.
  absl::Status Validate() const;
  // Checks that all listed ids exist, and that some token can be drawn. `eos`: number of the
  // model's end tokens.
  absl::Status CheckIds(int32_t vocab_size, size_t eos) const;

  bool HavePenalties() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
  bool AreBarring() const { return !bad_ids.empty() || min_tokens > 0; }
};

class LogitRules {
 public:
  // For a text that begins with `prompt`, whose last `answered` tokens already belong to the
  // answer. `eos`: the model's end tokens.
  LogitRules(const TokenRules& rules, absl::Span<const int32_t> eos,
             absl::Span<const int32_t> prompt, uint64_t answered);

  // Counts the answer's new tokens. `answer`: all tokens drawn so far.
  void Follow(absl::Span<const int32_t> answer);
  // Apply changes the logits of the next token; Restore undoes this.
  void Apply(absl::Span<float> logits);
  void Restore(absl::Span<float> logits) const;

 private:
  struct Entry {
    int32_t id = 0;
    float bias = 0;
    uint32_t count = 0;  // occurrences in the answer
    bool seen = false;   // occurs in prompt or answer
    bool bad = false, ends = false;
    float logit = 0;  // value before Apply
  };
  Entry& At(int32_t id);
  float Changed(const Entry& entry, float logit) const;
  void Count(int32_t id);

  const TokenRules rules_;
  const uint64_t answered_;
  size_t followed_ = 0;
  std::vector<Entry> entries_;
  std::unordered_map<int32_t, size_t> places_;  // token id to index in entries_
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_LOGIT_RULES_H_
