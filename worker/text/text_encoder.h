// TextEncoder: encodes one text as token ids.
//
// The text is split four times: at pieces that are never merged, at normalized pieces, at runs of
// spaces, and between characters that no merge joins. Each resulting part is merged separately.
//
// Thread safety: one thread. Ownership: all arguments must outlive the encoder.
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

// PairMerger: byte-pair encoding of text without never-merged pieces.
//
// Merges pairs of neighbours, best score first; among equal scores, the leftmost pair first, as in
// SentencePiece and transformers. A heap holds the pairs that can merge into a piece.
class PairMerger {
 public:
  explicit PairMerger(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  // Appends the ids of `text` to `ids`. Calls `may_go_on` in each step; if it returns false, Merge
  // returns false and appends nothing. Uses up to 48 bytes of memory per character of the text.
  // REQUIRES: well-formed UTF-8 of less than 4 GiB, with spaces as U+0020.
  bool Merge(std::string_view text, absl::FunctionRef<bool()> may_go_on, std::vector<int32_t>* ids);

 private:
  // A part of the text that is encoded. bytes = 0 after it was merged into the part before it.
  struct Part {
    uint32_t begin, bytes;
    uint32_t previous, next;
  };
  // Two neighbouring parts that can merge into a piece. Outdated if either part has changed since.
  struct Pair {
    float score;
    uint32_t left, right;
    uint32_t bytes;                            // length of the piece
    bool operator<(const Pair& other) const {  // the greatest pair is the best
      return score < other.score || (score == other.score && left > other.left);
    }
  };
  bool AddPair(std::string_view text, uint32_t left, uint32_t right);

  const Vocabulary& vocabulary_;
  std::vector<Part> parts_;  // kept between texts to reuse memory
  std::vector<Pair> pairs_;  // a heap of pairs that can merge
};

class TextEncoder {
 public:
  // A part of the text whose tokens do not depend on earlier text: a never-merged piece, a run of
  // spaces, or ordinary text.
  struct Segment {
    size_t begin_bytes;
    size_t begin_tokens;
  };

  TextEncoder(const Vocabulary& vocabulary, std::string_view text, const EncodeRules& rules)
      : vocabulary_(vocabulary), text_(text), rules_(rules), merger_(vocabulary) {}

  // Encodes the text from byte `begin` to its end. Appends to `ids` and `segments`. Returns false
  // if it stopped early; ended() has the reason.
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
