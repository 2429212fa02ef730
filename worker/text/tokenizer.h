// Tokenizer: converts text to Gemma's token ids and back, by byte-pair encoding.
//
// As in transformers, "<bos>" in a text is one id: text is first split at the pieces that are never
// merged (control, unknown and user-defined pieces; leftmost, then longest). The text between them
// is split where no merge crosses (Vocabulary::MayCut), and each segment is merged
// (text_encoder.h). A segment's tokens do not depend on earlier text, so the tokens of a text's
// prefix cost only a segment or two. No text is cached, so timings reveal nothing about other
// tenants' texts.
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

// 131,072 tokens (the longest published context) of 16 bytes: four times the length of typical
// English or source code.
inline constexpr size_t kMaxTextBytes = size_t{131072} * 16;

struct Encoding {
  std::vector<int32_t> ids;
  // For each offset: how many tokens the text up to the offset shares with the whole text.
  std::vector<uint32_t> common_tokens;
};

// Limits of an encoding, and plain parts of the text.
struct EncodeRules {
  size_t max_tokens = SIZE_MAX;   // more tokens end the encoding
  std::function<bool()> stopped;  // polled every few milliseconds; null: never stopped
  // Ascending byte ranges [begin, end). A special piece that begins in a range is encoded as plain
  // characters.
  std::vector<std::pair<size_t, size_t>> plain;
};

enum class EncodeEnd {
  kDone,
  kTooManyTokens,  // over max_tokens
  kStopped,
  kTooCostly,  // too many offsets inside very long words
};

class Tokenizer {
 public:
  // kInvalidArgument: a piece contains a space that is not U+2581, or its score is NaN.
  // kUnimplemented: a user-defined piece mixes spaces with other characters or is a single space,
  // or there are pieces for runs of spaces but none for two spaces. REQUIRES: well-formed UTF-8.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Make(
      const std::vector<VocabularyPiece>& pieces);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Adds no "<bos>": it must be part of the text.
  // REQUIRES: text is well-formed UTF-8 of at most kMaxTextBytes plus 64 bytes.
  std::vector<int32_t> Encode(std::string_view text) const;
  // REQUIRES: as above; each offset is at most text.size() and lies between characters. `*encoding`
  // is unchanged unless kDone is returned.
  EncodeEnd EncodeWithOffsets(std::string_view text, const std::vector<size_t>& offsets,
                              const EncodeRules& rules, Encoding* encoding) const;

  // Invalid UTF-8 becomes U+FFFD. Ids without a piece are skipped.
  std::string Decode(const std::vector<int32_t>& ids, bool skip_special) const;
  // Returns the bytes of a token. A byte piece may be part of a character.
  std::string_view TokenBytes(int32_t id) const;
  // Control pieces, the unknown piece, and turn and image markers: not shown to readers.
  bool IsSpecial(int32_t id) const;

  int32_t size() const { return vocabulary_.size(); }
  // Spaces in `piece` must be U+2581.
  std::optional<int32_t> FindPiece(std::string_view piece) const { return vocabulary_.Find(piece); }
  int32_t bos_id() const { return bos_id_; }  // id of "<bos>"; -1 if there is none

 private:
  explicit Tokenizer(const std::vector<VocabularyPiece>& pieces);

  const Vocabulary vocabulary_;
  const int32_t bos_id_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_TOKENIZER_H_
