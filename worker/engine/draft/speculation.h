// Speculation: the tokens that a sequence expects itself to decode next, for a step to compute
// beside the one that is due.
//
// Thread safety: none.
// Invariant: step() begins with the text's last token.
#ifndef HEARTH_WORKER_ENGINE_DRAFT_SPECULATION_H_
#define HEARTH_WORKER_ENGINE_DRAFT_SPECULATION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/engine/draft/draft_length.h"
#include "worker/engine/draft/ngram_draft.h"

namespace hearth {

class Speculation {
 public:
  // `most`: tokens to expect at a time; 0: it is off.
  explicit Speculation(uint32_t most) : length_(most) {}

  bool is_on() const { return length_.most() > 0; }

  // The text goes on: with the prompt, then with what was decoded.
  void Append(absl::Span<const int32_t> tokens) { text_.Append(tokens); }
  size_t tokens() const { return text_.tokens(); }
  // Looks for what comes behind the text, at most `room` tokens. REQUIRES: there is a text.
  void Guess(uint32_t room);
  // How many were found.
  uint32_t drafted() const { return step_.empty() ? 0 : static_cast<uint32_t>(step_.size()) - 1; }
  // The text's last token and the tokens expected behind it. REQUIRES: drafted() > 0.
  absl::Span<const int32_t> step() const { return step_; }
  // Of `drafted` expected tokens that a step computed the first `accepted` were decoded.
  void OnStep(uint32_t drafted, uint32_t accepted);

 private:
  NgramDraft text_;
  DraftLength length_;
  std::vector<int32_t> step_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_DRAFT_SPECULATION_H_
