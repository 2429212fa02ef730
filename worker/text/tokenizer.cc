#include "worker/text/tokenizer.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/utf8.h"
#include "worker/text/text_encoder.h"

namespace hearth {
namespace {

// The longest text plus "<bos>".
constexpr size_t kMaxEncodeBytes = kMaxTextBytes + 64;
// Limit of bytes that are encoded again to find common tokens. Ordinary text needs a word or two
// per offset. Without the limit, 1,000 offsets inside one word of megabytes would take minutes.
constexpr size_t kMaxRepeatedBytes = 2 * kMaxTextBytes;

// How the tokens change if an encoded text is cut at an offset.
struct Cut {
  TextEncoder::Segment begin;  // the tokens before this segment do not change
  bool inside;                 // the cut is inside a segment: encode again from `begin`
};

// `normalized_bytes`: length of the longest normalized piece.
Cut CutAt(size_t offset, size_t text_bytes, size_t normalized_bytes, const TextEncoder& whole) {
  auto segment =
      std::lower_bound(whole.segments.begin(), whole.segments.end(), offset,
                       [](const TextEncoder::Segment& s, size_t at) { return s.begin_bytes < at; });
  // A cut between two segments changes no token before the cut.
  if (segment != whole.segments.end() && segment->begin_bytes == offset) return {*segment, false};
  if (segment == whole.segments.end() && offset == text_bytes) {
    return {{text_bytes, whole.ids.size()}, false};
  }
  assert(!whole.segments.empty() && whole.segments.front().begin_bytes <= offset);
  // The remaining beginning of a cut segment may join the segment before it (one space of a run of
  // five), so begin one segment earlier. It may also end a normalized piece, so begin where such a
  // piece may begin.
  const auto begin = whole.segments.begin();
  if (segment != begin) --segment;
  const size_t first = segment->begin_bytes - std::min(segment->begin_bytes, normalized_bytes);
  if (segment != begin) --segment;
  while (segment != begin && segment->begin_bytes > first) --segment;
  return {*segment, true};
}

bool IsRunOfMarks(std::string_view text) {
  for (; text.substr(0, kSpaceMark.size()) == kSpaceMark; text.remove_prefix(kSpaceMark.size())) {
  }
  return text.empty();
}

absl::Status CheckPiece(const VocabularyPiece& piece) {
  const auto about = [&piece](const char* what) {
    return absl::StrCat("the piece \"", piece.text, "\" ", what);
  };
  if (piece.text.find(' ') != std::string::npos)
    return absl::InvalidArgumentError(about("contains a space, which must be written as U+2581"));
  if (std::isnan(piece.score))
    return absl::InvalidArgumentError(about("has a score that is not a number"));
  if (piece.type != PieceType::kUserDefined || piece.is_normalized ||
      piece.text.find(kSpaceMark) == std::string::npos)
    return absl::OkStatus();
  if (!IsRunOfMarks(piece.text))
    return absl::UnimplementedError(
        about("is user-defined and mixes spaces with other characters, which is not supported"));
  if (piece.text.size() == kSpaceMark.size())
    return absl::UnimplementedError(
        about("is user-defined and a single space, which is not supported"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Make(
    const std::vector<VocabularyPiece>& pieces) {
  // Whether there are pieces of several spaces, and of two spaces.
  bool runs = false, pairs = false;
  absl::flat_hash_set<std::string> normalized;
  for (const VocabularyPiece& piece : pieces) {
    if (IsNeverMerged(piece.type) && piece.is_normalized &&
        !normalized.insert(Replaced(piece.text, kSpaceMark, " ")).second) {
      return absl::UnimplementedError(absl::StrCat("two normalized pieces are \"", piece.text,
                                                   "\", with spaces written differently"));
    }
    if (!MayBecomeText(piece.type)) continue;
    if (absl::Status status = CheckPiece(piece); !status.ok()) return status;
    if (piece.type != PieceType::kUserDefined || piece.is_normalized || !IsRunOfMarks(piece.text))
      continue;
    runs = true;
    pairs = pairs || piece.text.size() == 2 * kSpaceMark.size();
  }
  if (runs && !pairs) {
    return absl::UnimplementedError(
        "the vocabulary has never-merged pieces for runs of spaces, but none for two spaces");
  }
  return std::unique_ptr<Tokenizer>(new Tokenizer(pieces));
}

Tokenizer::Tokenizer(const std::vector<VocabularyPiece>& pieces)
    : vocabulary_(pieces), bos_id_(FindPiece("<bos>").value_or(-1)) {}

std::vector<int32_t> Tokenizer::Encode(std::string_view text) const {
  Encoding encoding;
  EncodeWithOffsets(text, {}, EncodeRules(), &encoding);
  return std::move(encoding.ids);
}

std::vector<int32_t> Tokenizer::EncodePlain(std::string_view text) const {
  EncodeRules rules;
  rules.plain = {{0, text.size()}};
  Encoding encoding;
  EncodeWithOffsets(text, {}, rules, &encoding);
  return std::move(encoding.ids);
}

EncodeEnd Tokenizer::EncodeWithOffsets(std::string_view text, const std::vector<size_t>& offsets,
                                       const EncodeRules& rules, Encoding* encoding) const {
  assert(text.size() <= kMaxEncodeBytes);
  assert(!FindInvalidUtf8(text).has_value());
  TextEncoder whole(vocabulary_, text, rules);
  if (!whole.Encode(0)) return whole.ended();
  std::vector<Cut> cuts;
  size_t repeated_bytes = 0;
  for (const size_t offset : offsets) {
    assert(offset <= text.size() && IsUtf8Boundary(text, offset));
    cuts.push_back(CutAt(offset, text.size(), vocabulary_.longest_normalized_bytes(), whole));
    if (cuts.back().inside) repeated_bytes += offset - cuts.back().begin.begin_bytes;
    if (repeated_bytes > kMaxRepeatedBytes) return EncodeEnd::kTooCostly;
  }
  std::vector<uint32_t> common_tokens;
  for (size_t i = 0; i < cuts.size(); ++i) {
    size_t common = cuts[i].begin.begin_tokens;
    if (cuts[i].inside) {
      TextEncoder part(vocabulary_, text.substr(0, offsets[i]), rules);
      if (!part.Encode(cuts[i].begin.begin_bytes)) return part.ended();
      assert(common <= whole.ids.size() && cuts[i].begin.begin_bytes <= offsets[i]);
      const auto same = whole.ids.begin() + static_cast<ptrdiff_t>(common);
      const auto differ = std::mismatch(part.ids.begin(), part.ids.end(), same, whole.ids.end());
      common += static_cast<size_t>(differ.first - part.ids.begin());
    }
    common_tokens.push_back(static_cast<uint32_t>(common));
  }
  assert(common_tokens.size() == offsets.size());
  encoding->ids = std::move(whole.ids);
  encoding->common_tokens = std::move(common_tokens);
  return EncodeEnd::kDone;
}

std::string Tokenizer::Decode(const std::vector<int32_t>& ids, bool skip_special) const {
  std::string text;
  Utf8Repairer repairer;
  for (const int32_t id : ids) {
    if (!(skip_special && IsSpecial(id))) repairer.Append(TokenBytes(id), &text);
  }
  repairer.Finish(&text);
  return text;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || id >= size()) return {};
  return vocabulary_.token(id).bytes;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < size() && vocabulary_.token(id).special;
}

}  // namespace hearth
