#include "worker/text/space_runs.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace hearth {
namespace {

// Merges, from the left, neighbours of the lengths `left` and `right`.
void MergeNeighbours(size_t left, size_t right, std::vector<size_t>* parts) {
  size_t kept = 0;
  for (size_t i = 0; i < parts->size(); ++i) {
    if (i + 1 < parts->size() && (*parts)[i] == left && (*parts)[i + 1] == right) {
      (*parts)[kept++] = left + right;
      ++i;
    } else {
      (*parts)[kept++] = (*parts)[i];
    }
  }
  parts->resize(kept);
}

}  // namespace

SpaceRuns::SpaceRuns(std::map<size_t, int32_t> pieces) : id_by_length_(std::move(pieces)) {
  for (const auto& [length, id] : id_by_length_) {
    assert(length >= 2);
    lengths_by_id_.push_back(length);
  }
  std::sort(lengths_by_id_.begin(), lengths_by_id_.end(),
            [this](size_t a, size_t b) { return id_by_length_.at(a) < id_by_length_.at(b); });
}

// A merge's rank is the id of the piece that it makes, then the longer left part first. Ids grow
// with the length, so no merge makes room for one of a lower rank: each is tried once, in order.
// The parts halve in number as the lengths double: about 44 steps a space over all 31 lengths.
size_t SpaceRuns::Append(size_t count, std::vector<int32_t>* ids) const {
  assert(count >= 2);
  std::vector<size_t> parts(count, 1);
  for (const size_t length : lengths_by_id_) {
    for (size_t left = length - 1; left >= 1; --left) {
      MergeNeighbours(left, length - left, &parts);
    }
  }
  size_t alone = 0;
  for (const size_t length : parts) {
    if (length == 1) {
      ++alone;
    } else {
      assert(alone == 0);
      ids->push_back(id_by_length_.at(length));
    }
  }
  assert(alone <= 1);
  return alone;
}

}  // namespace hearth
