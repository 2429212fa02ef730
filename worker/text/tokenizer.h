// Tokenizer: converts text to Gemma's token ids and back, by byte-pair encoding.
//
// As in transformers, "<bos>" in a text becomes one id. The text is first split at the pieces that
// are never merged (control, unknown and user-defined pieces; leftmost, then longest match). The
// text between these is split where no merge joins characters (Vocabulary::MayCut), and each
// segment is merged separately (text_encoder.h). A segment's tokens do not depend on earlier text,
// so the tokens of a prefix of the text cost only a segment or two. No text is cached, so timing
// reveals nothing about the texts of other tenants.
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

// 131,072 tokens (the longest published context) of 16 bytes each, four times the bytes per token
// of typical English or source code.
inline constexpr size_t kMaxTextBytes = size_t{131072} * 16;

struct Encoding {
  std::vector<int32_t> ids;
  // For each offset: number of tokens that (the text before the offset) and (the whole text) have
  // in common at the beginning.
  std::vector<uint32_t> common_tokens;
};

// Limits of an encoding, and ranges of plain text.
struct EncodeRules {
  size_t max_tokens = SIZE_MAX;   // encoding stops if there are more tokens
  std::function<bool()> stopped;  // called every few milliseconds; true stops encoding; may be null
  // Byte ranges [begin, end), ascending. A special piece that begins in a range is encoded as plain
  // characters.
  std::vector<std::pair<size_t, size_t>> plain;
};

enum class EncodeEnd {
  kDone,
  kTooManyTokens,  // the text has more than max_tokens tokens
  kStopped,
  kTooCostly,  // too many offsets lie inside very long words
};

class Tokenizer {
 public:
  // kInvalidArgument: a piece contains a space that is not written as U+2581, or its score is NaN.
  // kUnimplemented: a user-defined piece mixes spaces with other characters or is a single space;
  // or there are pieces for runs of spaces but none for two spaces. REQUIRES: the pieces are
  // well-formed UTF-8.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Make(
      const std::vector<VocabularyPiece>& pieces);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Returns the tokens of `text`. Does not add "<bos>".
  // REQUIRES: text is well-formed UTF-8 of at most kMaxTextBytes plus 64 bytes.
  std::vector<int32_t> Encode(std::string_view text) const;
  // As Encode, but the names of special tokens in `text` are encoded as plain characters.
  std::vector<int32_t> EncodePlain(std::string_view text) const;
  // Also sets Encoding::common_tokens for `offsets`. REQUIRES: as Encode; each offset is at most
  // text.size() and lies between characters. Changes `*encoding` only if it returns kDone.
  EncodeEnd EncodeWithOffsets(std::string_view text, const std::vector<size_t>& offsets,
                              const EncodeRules& rules, Encoding* encoding) const;

  // Returns the text of the tokens. Invalid UTF-8 becomes U+FFFD. Ids without a piece are skipped.
  std::string Decode(const std::vector<int32_t>& ids, bool skip_special) const;
  // Returns the bytes of a token, which may be part of a character.
  std::string_view TokenBytes(int32_t id) const;
  // Returns whether the token is not shown to readers: control pieces, the unknown piece, and turn
  // and image markers.
  bool IsSpecial(int32_t id) const;

  int32_t size() const { return vocabulary_.size(); }
  // Returns the id of a piece. Spaces in `piece` must be written as U+2581.
  std::optional<int32_t> FindPiece(std::string_view piece) const { return vocabulary_.Find(piece); }
  // Id of "<bos>", or -1 if the vocabulary has no "<bos>".
  int32_t bos_id() const { return bos_id_; }

 private:
  explicit Tokenizer(const std::vector<VocabularyPiece>& pieces);

  const Vocabulary vocabulary_;
  const int32_t bos_id_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_TOKENIZER_H_
