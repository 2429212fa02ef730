// TextStream: a sequence's tokens, one by one, as text that can be shown at once.
//
// Text is held back while it is part of a character whose other bytes are still to come, and while
// it could be the beginning of a stop string. A stop string ends the text right before it, also
// when it spans tokens; of several, the one that is complete first, and of those the longest.
//
// Thread safety: one thread at a time. Ownership: the tokenizer must outlive the stream.
// Invariants: (1) every delta is well-formed UTF-8; (2) without a stop, the deltas together are
// Decode(ids, skip_special = true); with one, they are the part of it before the stop string;
// (3) the whole does not depend on where the tokens' borders lie.
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

// The text held back for a sequence, and searched after each token, stays below 256 bytes and a
// token.
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 256;

// kInvalidArgument naming the stop string's index and the limit: too many, empty, too long, or no
// UTF-8.
absl::Status ValidateStopStrings(const std::vector<std::string>& stop_strings);

// Whether the text of an answer that had no stop string before its last token has one now.
// REQUIRES: ValidateStopStrings(stop_strings) is OK; ids is not empty.
bool EndsWithStopString(const Tokenizer& tokenizer, const std::vector<std::string>& stop_strings,
                        absl::Span<const int32_t> ids);

class TextStream {
 public:
  // REQUIRES: ValidateStopStrings(stop_strings) is OK.
  TextStream(const Tokenizer* tokenizer, std::vector<std::string> stop_strings);

  // The text that the token made certain; may be empty. After a stop: always empty.
  std::string Push(int32_t token_id);
  // The sequence is over: the text still held back, with incomplete characters as U+FFFD.
  std::string Finish();
  // A stop string was completed: the sequence should end.
  bool stopped() const { return stopped_; }

 private:
  std::string Release();
  bool CutAtStopString();
  size_t HeldBackBytes() const;

  const Tokenizer* const tokenizer_;
  const std::vector<std::string> stop_strings_;
  Utf8Repairer repairer_;
  std::string pending_;  // whole characters that were not emitted
  bool stopped_ = false;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_TEXT_STREAM_H_
