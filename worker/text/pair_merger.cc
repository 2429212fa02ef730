#include "worker/text/pair_merger.h"

#include <algorithm>
#include <cassert>
#include <limits>

#include "proto/utf8.h"

namespace hearth {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

}  // namespace

// False: no piece joins the two.
bool PairMerger::AddPair(std::string_view text, uint32_t left, uint32_t right) {
  if (left == kNone || right == kNone) return false;
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
  // Each character is a part.
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

}  // namespace hearth
