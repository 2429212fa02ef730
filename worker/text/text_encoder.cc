#include "worker/text/text_encoder.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "worker/text/utf8.h"

namespace hearth {
namespace {

// SentencePiece takes about 3 us a byte: as much is a few milliseconds, and enough that what it
// costs to begin is nothing beside it.
constexpr size_t kStretchBytes = 2048;
constexpr size_t kBytesBetweenQuestions = 2048;

// How many bytes the space at the front takes, U+2581 standing for one; 0 when there is none.
size_t SpaceLength(std::string_view text) {
  if (!text.empty() && text[0] == ' ') return 1;
  return text.substr(0, kSpaceMark.size()) == kSpaceMark ? kSpaceMark.size() : 0;
}

bool MayBeSpace(char first) { return first == ' ' || first == kSpaceMark[0]; }

}  // namespace

// Asks the caller for every few thousand bytes.
bool TextEncoder::MayGoOn(size_t at) {
  if (ended_ != EncodeEnd::kDone) return false;
  if (ids.size() > rules_.max_tokens) {
    ended_ = EncodeEnd::kTooManyTokens;
  } else if (at >= asked_at_ + kBytesBetweenQuestions) {
    asked_at_ = at;
    if (rules_.stopped && rules_.stopped()) ended_ = EncodeEnd::kStopped;
  }
  return ended_ == EncodeEnd::kDone;
}

bool TextEncoder::IsPlain(size_t at) const {
  const auto after = std::upper_bound(rules_.plain.begin(), rules_.plain.end(), at,
                                      [](size_t position, const std::pair<size_t, size_t>& range) {
                                        return position < range.first;
                                      });
  return after != rules_.plain.begin() && at < std::prev(after)->second;
}

void TextEncoder::BeginSegment(size_t at) {
  if (at >= no_segment_until_) segments.push_back({at, ids.size()});
}

bool TextEncoder::Encode(size_t begin) {
  asked_at_ = begin;
  size_t gap = begin;  // of what was not yet tokenized
  for (size_t at = begin; at < text_.size();) {
    if (!vocabulary_.matcher().Starts(text_[at])) {
      ++at;
      continue;
    }
    const auto match = vocabulary_.matcher().Longest(text_.substr(at));
    if (!match.has_value()) {
      ++at;
      continue;
    }
    if (vocabulary_.token(match->id).special && IsPlain(at)) {
      // Its first character ends a stretch: SentencePiece would know the whole. A text that is cut
      // inside it has no such piece, so that all of it may become something else.
      const size_t piece_end = at + match->length_bytes;
      if (!Gap(gap, ++at)) return false;
      gap = at;
      BeginSegment(at);
      no_segment_until_ = std::max({no_segment_until_, piece_end, at + 1});
      continue;
    }
    if (!Gap(gap, at) || !MayGoOn(at)) return false;
    BeginSegment(at);
    ids.push_back(match->id);
    gap = at += match->length_bytes;
  }
  return Gap(gap, text_.size()) && MayGoOn(text_.size());
}

// Between two whole pieces: runs of spaces, and stretches of ordinary text.
bool TextEncoder::Gap(size_t begin, size_t end) {
  const SpaceRuns& runs = vocabulary_.space_runs();
  size_t stretch = begin;
  for (size_t at = begin; at < end;) {
    if (!MayBeSpace(text_[at])) {
      ++at;
      continue;
    }
    size_t count = 0, run_end = at, last_space = at;
    while (run_end < end) {
      const size_t length_bytes = SpaceLength(text_.substr(run_end, end - run_end));
      if (length_bytes == 0) break;
      last_space = run_end;
      run_end += length_bytes;
      ++count;
    }
    if (count >= 2 && !runs.empty()) {
      if (!Stretch(stretch, at) || !MayGoOn(at)) return false;
      if (ids.size() + count / runs.longest() > rules_.max_tokens) {
        ended_ = EncodeEnd::kTooManyTokens;
        return false;
      }
      BeginSegment(at);
      const size_t alone = runs.Append(count, &ids);
      stretch = alone == 0 ? run_end : last_space;
    }
    at = std::max(run_end, at + 1);
  }
  return Stretch(stretch, end);
}

bool TextEncoder::Stretch(size_t begin, size_t end) {
  if (begin == end) return true;
  const bool proven = vocabulary_.joins() != nullptr &&
                      text_.substr(begin, end - begin).find(kSpaceMark) == std::string_view::npos;
  return proven ? ProvenParts(begin, end) : SomeWords(begin, end);
}

bool TextEncoder::ProvenParts(size_t begin, size_t end) {
  const PieceJoins& joins = *vocabulary_.joins();
  size_t part = begin;
  Character left = CharacterAt(text_, begin);
  for (size_t at = begin + left.bytes; at < end;) {
    const Character right = CharacterAt(text_, at);
    if (!joins.MayJoin(left.code, right.code)) {
      if (!Part(part, at)) return false;
      part = at;
    }
    left = right;
    at += right.bytes;
  }
  return Part(part, end);
}

bool TextEncoder::Part(size_t begin, size_t end) {
  if (end - begin > parts_.long_word_bytes) return LongWord(begin, end);
  if (end >= asked_at_ + kBytesBetweenQuestions && !MayGoOn(end)) return false;
  BeginSegment(begin);
  const std::string_view part = text_.substr(begin, end - begin);
  const PieceTable::Piece* piece = vocabulary_.table().Find(part);
  if (piece != nullptr && piece->made_of_self) {
    ids.push_back(static_cast<int32_t>(piece->id));
  } else {
    vocabulary_.merger()->Encode(part, nullptr, &ids);
  }
  return true;
}

// A few words at a time, so that it can be stopped: no piece reaches over a word's begin.
bool TextEncoder::SomeWords(size_t begin, size_t end) {
  size_t words = begin;  // of those not yet tokenized
  size_t word = begin;   // of the last of them
  for (size_t at = begin + 1; at <= end; ++at) {
    if (at < end && !IsWordBegin(at)) continue;
    if (at - word > parts_.long_word_bytes && vocabulary_.merger() != nullptr) {
      if (!Words(words, word) || !LongWord(word, at)) return false;
      words = at;
    } else if (at - words >= kStretchBytes) {
      if (!Words(words, at)) return false;
      words = at;
    }
    word = at;
  }
  return Words(words, end);
}

bool TextEncoder::Words(size_t begin, size_t end) {
  if (begin == end) return true;
  if (!MayGoOn(end)) return false;
  const std::string_view stretch = text_.substr(begin, end - begin);
  std::vector<int> encoded;
  parts_.sentencepiece(Replaced(stretch, " ", kSpaceMark), &encoded);
  BeginSegment(begin);
  // A word that no piece can join to what is before its space begins a segment of its own. A
  // literal U+2581 or an unknown character hides how long a token is: the stretch stays whole.
  size_t at = begin, bytes = 0;
  bool is_known = stretch.find(kSpaceMark) == std::string_view::npos;
  for (const int id : encoded) {
    is_known &= !vocabulary_.token(id).unknown;
    bytes += vocabulary_.token(id).bytes.size();
  }
  const bool divide = is_known && bytes == stretch.size();
  for (const int id : encoded) {
    if (divide && at > begin && IsWordBegin(at)) BeginSegment(at);
    ids.push_back(id);
    at += divide ? vocabulary_.token(id).bytes.size() : 0;
  }
  return true;
}

bool TextEncoder::LongWord(size_t begin, size_t end) {
  if (!MayGoOn(begin)) return false;
  BeginSegment(begin);
  const std::string word = Replaced(text_.substr(begin, end - begin), kSpaceMark, " ");
  if (ids.size() + word.size() / vocabulary_.table().longest_bytes() > rules_.max_tokens) {
    ended_ = EncodeEnd::kTooManyTokens;
  } else if (!vocabulary_.merger()->Encode(word, rules_.stopped, &ids)) {
    ended_ = EncodeEnd::kStopped;
  }
  return MayGoOn(end);
}

}  // namespace hearth
