// TextEncoder: one text on its way to token ids.
//
// The text is divided four times: at the pieces that are never merged, at those that are
// normalized, at runs of spaces, and between characters that no merge joins. Each part is merged by
// itself. Thread safety: one thread. Ownership: all that it is given must outlive it.
#ifndef HEARTH_WORKER_TEXT_TEXT_ENCODER_H_
#define HEARTH_WORKER_TEXT_TEXT_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "worker/text/tokenizer.h"
#include "worker/text/vocabulary.h"

namespace hearth {

// PairMerger: byte-pair encoding of a stretch of text that holds no piece that is never merged.
//
// Neighbours become pieces, the best score first, and of equal scores the leftmost, as in
// SentencePiece and transformers. A heap holds the pairs of neighbours that a piece joins.
class PairMerger {
 public:
  explicit PairMerger(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  // Appends the ids of `text` to `ids`. If `may_go_on`, called in each step, returns false, returns
  // false and appends none. Takes at most 48 bytes of memory for each character of the longest
  // text. REQUIRES: well-formed UTF-8 of less than 4 GiB, spaces as spaces.
  bool Merge(std::string_view text, absl::FunctionRef<bool()> may_go_on, std::vector<int32_t>* ids);

 private:
  // A part of the text; without bytes once it was joined to the part before.
  struct Part {
    uint32_t begin, bytes;
    uint32_t previous, next;
  };
  // Two neighbours that a piece joins. Stale if either has changed since.
  struct Pair {
    float score;
    uint32_t left, right;
    uint32_t bytes;                            // of the piece
    bool operator<(const Pair& other) const {  // the best pair is the greatest
      return score < other.score || (score == other.score && left > other.left);
    }
  };
  bool AddPair(std::string_view text, uint32_t left, uint32_t right);

  const Vocabulary& vocabulary_;
  std::vector<Part> parts_;  // kept from text to text for their memory
  std::vector<Pair> pairs_;  // a heap
};

class TextEncoder {
 public:
  // A part of a text whose tokens depend on nothing before it: a piece that is never merged, a run
  // of spaces, or ordinary text.
  struct Segment {
    size_t begin_bytes;
    size_t begin_tokens;
  };

  TextEncoder(const Vocabulary& vocabulary, std::string_view text, const EncodeRules& rules)
      : vocabulary_(vocabulary), text_(text), rules_(rules), merger_(vocabulary) {}

  // From `begin` to the text's end, appended to `ids` and `segments`; false: ended() says why not.
  bool Encode(size_t begin);
  EncodeEnd ended() const { return ended_; }

  std::vector<int32_t> ids;
  std::vector<Segment> segments;

 private:
  bool Divide(bool normalized, size_t begin, size_t end);
  bool Gap(size_t begin, size_t end);
  bool Stretch(size_t begin, size_t end);
  bool Part(size_t begin, size_t end);
  void BeginSegment(size_t at);
  bool IsPlain(size_t at) const;
  bool MayGoOn();
  bool HasRoomFor(size_t tokens);

  const Vocabulary& vocabulary_;
  const std::string_view text_;
  const EncodeRules& rules_;
  PairMerger merger_;
  uint32_t steps_ = 0;
  size_t no_segment_until_ = 0;
  EncodeEnd ended_ = EncodeEnd::kDone;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_TEXT_ENCODER_H_
