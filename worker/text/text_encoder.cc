#include "worker/text/text_encoder.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "proto/utf8.h"

namespace hearth {
namespace {

// Steps between two calls of EncodeRules::stopped: about 1 ms. A step looks up a piece, or takes a
// pair from the heap.
constexpr uint32_t kStepsBetweenQuestions = 4096;
// Value of `previous` or `next` if there is no neighbour.
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// Returns the length of the space (U+0020 or U+2581) at the front of `text`; 0 if `text` does not
// begin with a space.
size_t SpaceLength(std::string_view text) {
  if (!text.empty() && text[0] == ' ') return 1;
  return text.substr(0, kSpaceMark.size()) == kSpaceMark ? kSpaceMark.size() : 0;
}

bool MayBeSpace(char first) { return first == ' ' || first == kSpaceMark[0]; }

}  // namespace

// Adds the pair to pairs_. Returns false, and adds nothing, if no piece joins the two parts.
bool PairMerger::AddPair(std::string_view text, uint32_t left, uint32_t right) {
  if (left == kNone || right == kNone) return false;
  assert(parts_[left].next == right && parts_[right].previous == left);
  const uint32_t bytes = parts_[left].bytes + parts_[right].bytes;
  const Vocabulary::Made* made = vocabulary_.FindMade(text.substr(parts_[left].begin, bytes));
  if (made == nullptr) return false;
  pairs_.push_back({made->score, left, right, bytes});
  return true;
}

bool PairMerger::Merge(std::string_view text, absl::FunctionRef<bool()> may_go_on,
                       std::vector<int32_t>* ids) {
  assert(text.size() < kNone);
  parts_.clear();
  pairs_.clear();
  // At first, each character is a part.
  for (uint32_t at = 0; at < text.size(); at += parts_.back().bytes) {
    if (!may_go_on()) return false;
    const auto number = static_cast<uint32_t>(parts_.size());
    if (number > 0) parts_.back().next = number;
    parts_.push_back({at, CharacterAt(text, at).bytes, number == 0 ? kNone : number - 1, kNone});
    AddPair(text, parts_.back().previous, number);
  }
  std::make_heap(pairs_.begin(), pairs_.end());
  while (!pairs_.empty()) {
    if (!may_go_on()) return false;
    std::pop_heap(pairs_.begin(), pairs_.end());
    const Pair pair = pairs_.back();
    pairs_.pop_back();
    Part& left = parts_[pair.left];
    Part& right = parts_[pair.right];
    if (left.bytes == 0 || right.bytes == 0 || left.bytes + right.bytes != pair.bytes) continue;
    assert(left.next == pair.right);  // both parts are as they were when the pair was added
    left.bytes = pair.bytes;
    left.next = right.next;
    if (right.next != kNone) parts_[right.next].previous = pair.left;
    right.bytes = 0;
    if (AddPair(text, left.previous, pair.left)) std::push_heap(pairs_.begin(), pairs_.end());
    if (AddPair(text, pair.left, left.next)) std::push_heap(pairs_.begin(), pairs_.end());
  }
  for (uint32_t at = parts_.empty() ? kNone : 0; at != kNone; at = parts_[at].next) {
    vocabulary_.AppendIds(text.substr(parts_[at].begin, parts_[at].bytes), ids);
  }
  return true;
}

// Called in each step. Checks the token limit, and calls EncodeRules::stopped every
// kStepsBetweenQuestions steps.
bool TextEncoder::MayGoOn() {
  if (ended_ != EncodeEnd::kDone) return false;
  if (ids.size() > rules_.max_tokens) {
    ended_ = EncodeEnd::kTooManyTokens;
  } else if (++steps_ % kStepsBetweenQuestions == 0 && rules_.stopped && rules_.stopped()) {
    ended_ = EncodeEnd::kStopped;
  }
  return ended_ == EncodeEnd::kDone;
}

// Returns whether `tokens` more tokens stay within the token limit.
bool TextEncoder::HasRoomFor(size_t tokens) {
  if (ids.size() + tokens > rules_.max_tokens) ended_ = EncodeEnd::kTooManyTokens;
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
  return Divide(/*normalized=*/false, begin, text_.size()) && HasRoomFor(0);
}

// Splits text at never-merged pieces, and the text between these at normalized pieces.
bool TextEncoder::Divide(bool normalized, size_t begin, size_t end) {
  const bool is_last = normalized || vocabulary_.longest_normalized_bytes() == 0;
  const auto between = [&](size_t from, size_t to) {
    return is_last ? Gap(from, to) : Divide(/*normalized=*/true, from, to);
  };
  size_t gap = begin;  // start of the text that is not encoded yet
  for (size_t at = begin; at < end;) {
    if (!vocabulary_.MayStartWhole(normalized, text_[at])) {
      ++at;
      continue;
    }
    if (!MayGoOn()) return false;
    const auto match = vocabulary_.LongestWhole(normalized, text_.substr(at, end - at));
    if (!match.has_value()) {
      ++at;
      continue;
    }
    if (vocabulary_.token(match->id).special && IsPlain(at)) {
      // In a plain range, encode the piece's first character separately; otherwise merging would
      // produce the whole piece. No segment begins inside the piece: if the text is cut there, the
      // piece's characters may merge differently.
      const size_t piece_end = at + match->length_bytes;
      at += CharacterAt(text_, at).bytes;
      if (!between(gap, at)) return false;
      gap = at;
      BeginSegment(at);
      no_segment_until_ = std::max({no_segment_until_, piece_end, at + 1});
      continue;
    }
    if (!between(gap, at)) return false;
    BeginSegment(at);
    assert(match->length_bytes > 0 && at + match->length_bytes <= end);
    ids.push_back(match->id);
    gap = at += match->length_bytes;
  }
  return between(gap, end);
}

// Encodes the text between never-merged pieces: runs of spaces, and ordinary text between these.
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
      if (!Stretch(stretch, at) || !HasRoomFor(count / runs.longest())) return false;
      BeginSegment(at);
      assert(runs.longest() >= 2);
      const size_t alone = runs.Append(count, &ids);
      stretch = alone == 0 ? run_end : last_space;
    }
    at = std::max(run_end, at + 1);
  }
  return Stretch(stretch, end);
}

// Encodes ordinary text. Splits it between characters that no merge joins, which keeps the heaps
// small.
bool TextEncoder::Stretch(size_t begin, size_t end) {
  size_t part = begin;
  for (size_t at = begin; at < end;) {
    const Character left = CharacterAt(text_, at);
    at += left.bytes;
    if (at < end && !vocabulary_.MayCut(left.code, CharacterAt(text_, at).code)) continue;
    if (!Part(part, at)) return false;
    part = at;
  }
  assert(part == end);  // `begin` and `end` lie between characters
  return true;
}

bool TextEncoder::Part(size_t begin, size_t end) {
  BeginSegment(begin);
  assert(begin <= end && end <= text_.size());
  std::string_view part = text_.substr(begin, end - begin);
  std::string replaced;  // with spaces as U+0020
  if (part.find(kSpaceMark) != std::string_view::npos)
    part = replaced = Replaced(part, kSpaceMark, " ");
  return HasRoomFor(part.size() / vocabulary_.longest_made_bytes()) &&
         merger_.Merge(
             part, [this] { return MayGoOn(); }, &ids);
}

}  // namespace hearth
