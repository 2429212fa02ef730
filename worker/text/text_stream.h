// TextStream: converts a sequence's tokens, one by one, to text that can be shown at once.
//
// Text is held back while a character is incomplete, or while it may be the beginning of a stop
// string. A stop string ends the text just before the stop string, even if it spans several tokens.
// If several stop strings match, the one that is complete first counts; of several that end at the
// same byte, the longest.
//
// Thread safety: one thread at a time. Ownership: the tokenizer must outlive the stream.
// Invariants: (1) Every returned text is well-formed UTF-8. (2) All returned texts together are
// Decode(ids, skip_special = true), cut before the stop string. (3) The whole text depends only on
// the tokens' bytes, not on how these are divided into tokens.
#ifndef HEARTH_WORKER_TEXT_TEXT_STREAM_H_
#define HEARTH_WORKER_TEXT_TEXT_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/utf8.h"
#include "worker/text/tokenizer.h"

namespace hearth {

// With these limits, less than 256 bytes plus one token are held back and searched after each
// token.
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 256;

// Returns kInvalidArgument, with the stop string's index and the limit, if there are too many stop
// strings, or if one is empty, too long, or invalid UTF-8.
absl::Status ValidateStopStrings(const std::vector<std::string>& stop_strings);

// Returns whether the last token of `ids` completes a stop string. REQUIRES: no earlier token
// completes one; ValidateStopStrings(stop_strings) is OK; ids is not empty.
bool EndsWithStopString(const Tokenizer& tokenizer, const std::vector<std::string>& stop_strings,
                        absl::Span<const int32_t> ids);

class TextStream {
 public:
  // REQUIRES: ValidateStopStrings(stop_strings) is OK.
  TextStream(const Tokenizer* tokenizer, std::vector<std::string> stop_strings);

  // Adds a token. Returns the text that can be shown now; may be empty. After a stop string, it is
  // always empty.
  std::string Push(int32_t token_id);
  // Ends the stream. Returns the text held back, with U+FFFD for incomplete characters.
  std::string Finish();
  // Returns whether a stop string is complete: the caller should then end the answer.
  bool stopped() const { return !stop_string_.empty(); }
  // Returns the stop string that ended the text; empty unless stopped().
  const std::string& stop_string() const { return stop_string_; }

 private:
  std::string Release();
  bool CutAtStopString();
  size_t HeldBackBytes() const;

  const Tokenizer* const tokenizer_;
  const std::vector<std::string> stop_strings_;
  Utf8Repairer repairer_;
  std::string pending_;  // complete characters not yet returned
  std::string stop_string_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_TEXT_STREAM_H_
