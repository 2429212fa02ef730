// TokenLog: the tokens of a text with their log probabilities, as numbers. JSON is made of them
// when it is sent: as JSON values they would take ten times the memory.
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

// The bytes that a token adds to a text; `tokenizer` null: there is no text.
absl::string_view TokenText(const Tokenizer* tokenizer, int32_t id);

class TokenLog {
 public:
  // `text_offset`: where its text begins. The first token of a prompt has no log probability.
  void Add(const SampledToken& token, size_t text_offset, bool has_logprob = true);
  size_t size() const { return tokens_.size(); }
  uint64_t bytes() const {
    return tokens_.capacity() * sizeof(Token) + top_.capacity() * sizeof(top_[0]);
  }

  // The entries of a chat's "content", parted by commas.
  void WriteContent(const Tokenizer* tokenizer, HeldText* out) const;

 private:
  friend void WriteFlat(const std::vector<const TokenLog*>& logs, const Tokenizer* tokenizer,
                        HeldText* out);
  struct Token {
    int32_t id = 0;
    float logprob = 0;
    bool has_logprob = false;
    size_t top_end = 0;  // in top_; it begins where the one before ends
    size_t text_offset = 0;
  };
  void WriteEntry(int32_t id, float logprob, const Tokenizer* tokenizer, HeldText* out) const;
  // The alternatives of token `i`, as an object.
  void WriteTop(size_t i, const Tokenizer* tokenizer, HeldText* out) const;
  size_t TopBegin(size_t i) const { return i == 0 ? 0 : tokens_[i - 1].top_end; }

  std::vector<Token> tokens_;
  std::vector<TokenLogprob> top_;
};

// The "logprobs" of a completion, of the tokens of all logs one after another.
void WriteFlat(const std::vector<const TokenLog*>& logs, const Tokenizer* tokenizer, HeldText* out);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_TOKEN_LOG_H_
