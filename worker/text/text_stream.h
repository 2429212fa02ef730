// TextStream: converts a sequence's tokens, one by one, to text that can be shown at once.
//
// Text is held back while a character is incomplete, or while it may be the beginning of a stop
// string. A stop string ends the text right before it, even if it spans tokens. If several match,
// the first complete stop string counts; of those, the longest.
//
// Thread safety: one thread at a time. Ownership: the tokenizer must outlive the stream.
// Invariants: (1) every delta is well-formed UTF-8; (2) the deltas together are Decode(ids,
// skip_special = true), cut before the stop string; (3) the whole text does not depend on token
// borders.
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

// These keep the text held back, and searched after each token, below 256 bytes plus one token.
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 256;

// kInvalidArgument with the stop string's index and the limit: too many, empty, too long, or
// invalid UTF-8.
absl::Status ValidateStopStrings(const std::vector<std::string>& stop_strings);

// Returns whether the last token completes a stop string. REQUIRES: no earlier token did;
// ValidateStopStrings(stop_strings) is OK; ids is not empty.
bool EndsWithStopString(const Tokenizer& tokenizer, const std::vector<std::string>& stop_strings,
                        absl::Span<const int32_t> ids);

class TextStream {
 public:
  // REQUIRES: ValidateStopStrings(stop_strings) is OK.
  TextStream(const Tokenizer* tokenizer, std::vector<std::string> stop_strings);

  // Adds a token. Returns the text that is now certain, possibly empty. After a stop: always empty.
  std::string Push(int32_t token_id);
  // Ends the sequence. Returns the text held back, with incomplete characters as U+FFFD.
  std::string Finish();
  // A stop string is complete: the sequence should end.
  bool stopped() const { return stopped_; }

 private:
  std::string Release();
  bool CutAtStopString();
  size_t HeldBackBytes() const;

  const Tokenizer* const tokenizer_;
  const std::vector<std::string> stop_strings_;
  Utf8Repairer repairer_;
  std::string pending_;  // complete characters not yet returned
  bool stopped_ = false;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_TEXT_STREAM_H_
