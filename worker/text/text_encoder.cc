#include "worker/text/text_encoder.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "worker/text/utf8.h"

namespace hearth {
namespace {

// Merging as much takes a few milliseconds: longer words are asked about.
constexpr size_t kLongWordBytes = 4096;
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
      // Its first character ends a stretch: merging would make the whole of it. A text that is cut
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

// Cut where the vocabulary proves that it may be.
bool TextEncoder::Stretch(size_t begin, size_t end) {
  if (begin == end) return true;
  const auto written = [](Character character) {
    if (character.code == kMarkCharacter) character.code = U' ';
    return character;
  };
  size_t part = begin;
  Character left = written(CharacterAt(text_, begin));
  for (size_t at = begin + left.bytes; at < end;) {
    const Character right = written(CharacterAt(text_, at));
    if (!vocabulary_.joins().MayJoin(left.code, right.code)) {
      if (!Part(part, at)) return false;
      part = at;
    }
    left = right;
    at += right.bytes;
  }
  return Part(part, end);
}

bool TextEncoder::Part(size_t begin, size_t end) {
  const bool is_long = end - begin > kLongWordBytes;
  if ((is_long || end >= asked_at_ + kBytesBetweenQuestions) && !MayGoOn(end)) return false;
  BeginSegment(begin);
  std::string_view part = text_.substr(begin, end - begin);
  std::string replaced;  // where it has U+2581 for a space
  if (part.find(kSpaceMark) != std::string_view::npos)
    part = replaced = Replaced(part, kSpaceMark, " ");
  if (is_long &&
      ids.size() + part.size() / vocabulary_.table().longest_bytes() > rules_.max_tokens) {
    ended_ = EncodeEnd::kTooManyTokens;
    return false;
  }
  const PieceTable::Piece* piece = vocabulary_.table().Find(part);
  if (piece != nullptr && piece->made_of_self) {
    ids.push_back(static_cast<int32_t>(piece->id));
  } else if (!vocabulary_.merger().Encode(part, rules_.stopped, &ids)) {
    ended_ = EncodeEnd::kStopped;
  }
  return !is_long || MayGoOn(end);
}

}  // namespace hearth
