// Tokenizer: text to Gemma's token ids and back, over a SentencePiece model.
//
// SentencePiece alone leaves "<bos>" in a text as five plain characters; transformers makes it one
// id, and so does this class: a text is first divided at the pieces that are never merged with
// their neighbours (control, unknown and user-defined ones; leftmost, then longest), and only what
// lies between becomes what SentencePiece makes of it: by Hearth's own hands where the vocabulary
// proves that the text may be cut into words (piece_joins.h), otherwise by SentencePiece itself.
// A segment's tokens depend on nothing before it, so the tokens of a text's prefix cost a segment
// or two, however long the text. Nothing of a text is kept, so timings tell no tenant about others.
//
// Standard library only: sentencepiece's header clashes with Debian's Abseil, and tokenizer.cc is
// the one file that sees it. Errors as absl::Status are made by tokenizer_loader (files) and prompt
// (texts); hence the REQUIRES below.
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

namespace hearth {

// 131,072 tokens, the longest published context, at 16 bytes a token: four times what English or
// source code needs.
inline constexpr size_t kMaxTextBytes = size_t{131072} * 16;

// SentencePiece takes some milliseconds for as much.
inline constexpr size_t kLongWordBytes = 4096;

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

// Other ways to the same ids, for tests.
struct TokenizerSeams {
  // Longer words than this are encoded by Hearth in every case, because SentencePiece could not be
  // stopped.
  size_t long_word_bytes = kLongWordBytes;
  // Whether to look for places where texts may be cut: without, SentencePiece encodes all others.
  bool prove_cuts = true;
};

class Tokenizer {
 public:
  // `model` is the contents of a tokenizer.model. Null on failure, with the reason in `*error`:
  // not a SentencePiece model, or one that changes the text it is given (dummy prefix, white space
  // removal), which Gemma's does not and the segments above do not allow.
  static std::unique_ptr<Tokenizer> Parse(std::string_view model, std::string* error,
                                          const TokenizerSeams& seams = {});
  ~Tokenizer();
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

  int32_t size() const;
  std::optional<int32_t> FindPiece(std::string_view piece) const;
  // -1 where the model has none.
  int32_t bos_id() const { return bos_id_; }
  int32_t eos_id() const { return eos_id_; }
  int32_t pad_id() const { return pad_id_; }
  // Empty, or why the vocabulary does not prove where a text may be cut: SentencePiece encodes it
  // then, several times slower.
  const std::string& why_not_proven() const;

 private:
  class Model;  // the SentencePiece processor, and what is known about its pieces
  explicit Tokenizer(std::unique_ptr<Model> model);
  bool KeepsTextAsItIs() const;

  const std::unique_ptr<const Model> model_;
  const int32_t bos_id_, eos_id_, pad_id_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_TOKENIZER_H_
