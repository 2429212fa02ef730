// Tokenizer: text to Gemma's token ids and back, by byte-pair encoding.
//
// As in transformers, "<bos>" in a text is one id: a text is first divided at the pieces that are
// never merged with their neighbours (control, unknown and user-defined ones; leftmost, then
// longest). The text between them is merged (text_encoder.h), after it was cut where no merge
// crosses (Vocabulary::MayCut). A segment's tokens depend on nothing before it, so the tokens of a
// text's prefix cost a segment or two, however long the text. No part of a text is kept, so timings
// reveal nothing about other tenants' texts.
//
// Thread safety: const after construction; any thread.
#ifndef HEARTH_WORKER_TEXT_TOKENIZER_H_
#define HEARTH_WORKER_TEXT_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/text/vocabulary.h"

namespace hearth {

// 131,072 tokens, the longest published context, at 16 bytes a token: four times what English or
// source code needs.
inline constexpr size_t kMaxTextBytes = size_t{131072} * 16;

struct Encoding {
  std::vector<int32_t> ids;
  // For each offset asked for: how many tokens the text up to there has in common with the whole
  // text, from the start.
  std::vector<uint32_t> common_tokens;
};

// Limits of an encoding, and the parts of the text that are plain.
struct EncodeRules {
  size_t max_tokens = SIZE_MAX;   // more of them are of no use
  std::function<bool()> stopped;  // asked every few milliseconds; null: nobody stops it
  // Ascending ranges of bytes, [begin, end), where a special piece that begins there is the
  // characters it is written with.
  std::vector<std::pair<size_t, size_t>> plain;
};

enum class EncodeEnd {
  kDone,
  kTooManyTokens,  // over max_tokens
  kStopped,
  kTooCostly,  // many offsets inside one word of megabytes
};

class Tokenizer {
 public:
  // kInvalidArgument: a piece has a space that is not U+2581, or a score that is no number.
  // kUnimplemented: a user-defined piece has a space among other characters, or is a single space;
  // or runs of spaces are pieces, but a run of two is none. REQUIRES: well-formed UTF-8.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Make(
      const std::vector<VocabularyPiece>& pieces);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // No id is added: a prompt's "<bos>" is part of its text.
  // REQUIRES: text is well-formed UTF-8 of at most kMaxTextBytes plus 64 bytes.
  std::vector<int32_t> Encode(std::string_view text) const;
  // REQUIRES: as above; each offset is at most text.size() and lies between characters.
  // Anything but kDone leaves `*encoding` as it is.
  EncodeEnd EncodeWithOffsets(std::string_view text, const std::vector<size_t>& offsets,
                              const EncodeRules& rules, Encoding* encoding) const;

  // Bytes that are no UTF-8 become U+FFFD. Ids without a piece have no text.
  std::string Decode(const std::vector<int32_t>& ids, bool skip_special) const;
  // The bytes that one token adds to the text: a byte piece may be a part of a character.
  std::string_view TokenBytes(int32_t id) const;
  // Control pieces, the unknown piece, and the turn and image markers: not for a reader's eyes.
  bool IsSpecial(int32_t id) const;

  int32_t size() const { return vocabulary_.size(); }
  // A space in `piece` is U+2581.
  std::optional<int32_t> FindPiece(std::string_view piece) const { return vocabulary_.Find(piece); }
  int32_t bos_id() const { return bos_id_; }  // of "<bos>"; -1 where there is none

 private:
  explicit Tokenizer(const std::vector<VocabularyPiece>& pieces);

  const Vocabulary vocabulary_;
  const int32_t bos_id_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_TOKENIZER_H_
