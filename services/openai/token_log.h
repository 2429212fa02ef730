// TokenLog: the tokens of a text with their log probabilities, stored as numbers. They are
// converted to JSON only when they are sent, because JSON values would need ten times the memory.
//
// Thread safety: none.
#ifndef HEARTH_SERVICES_OPENAI_TOKEN_LOG_H_
#define HEARTH_SERVICES_OPENAI_TOKEN_LOG_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/openai/held_text.h"
#include "worker/text/sampler.h"
#include "worker/text/tokenizer.h"

namespace hearth {

// Returns the text of a token, as bytes; "" if `tokenizer` is null.
absl::string_view TokenText(const Tokenizer* tokenizer, int32_t id);

class TokenLog {
 public:
  // Adds a token. `text_offset`: byte offset of the token in the text. `has_logprob`: false for the
  // first token of a prompt.
  void Add(const SampledToken& token, size_t text_offset, bool has_logprob = true);
  size_t size() const { return tokens_.size(); }
  uint64_t bytes() const {
    return tokens_.capacity() * sizeof(Token) + top_.capacity() * sizeof(top_[0]);
  }

  // Writes the list items of the field "content" in the "logprobs" of a chat, separated by commas.
  void WriteContent(const Tokenizer* tokenizer, HeldText* out) const;

 private:
  friend void WriteFlat(const std::vector<const TokenLog*>& logs, const Tokenizer* tokenizer,
                        HeldText* out);
  struct Token {
    int32_t id = 0;
    float logprob = 0;
    bool has_logprob = false;
    // index in top_ of the end of the token's alternatives, which begin at the top_end of the token
    // before
    size_t top_end = 0;
    size_t text_offset = 0;
  };
  void WriteEntry(int32_t id, float logprob, const Tokenizer* tokenizer, HeldText* out) const;
  // Writes the alternatives of token `i` as a JSON object.
  void WriteTop(size_t i, const Tokenizer* tokenizer, HeldText* out) const;
  size_t TopBegin(size_t i) const { return i == 0 ? 0 : tokens_[i - 1].top_end; }

  std::vector<Token> tokens_;
  std::vector<TokenLogprob> top_;
};

// Writes the "logprobs" object of a completion: the tokens of all logs, one log after another.
void WriteFlat(const std::vector<const TokenLog*>& logs, const Tokenizer* tokenizer, HeldText* out);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_TOKEN_LOG_H_
