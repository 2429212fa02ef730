#include "cache_store/base/range_allocator.h"

#include <cassert>
#include <iterator>

namespace hearth {

std::optional<uint64_t> RangeAllocator::Allocate(uint64_t bytes) {
  assert(bytes > 0);
  const auto best = by_size_.lower_bound({bytes, 0});
  if (best == by_size_.end()) return std::nullopt;
  assert(best->first >= bytes && free_bytes_ >= best->first);
  const auto [found, offset] = *best;
  Erase(offset, found);
  if (found > bytes) Add(offset + bytes, found - bytes);
  return offset;
}

void RangeAllocator::Free(uint64_t offset, uint64_t bytes) {
  assert(offset + bytes > offset);
  assert(bytes > 0);
  auto after = by_offset_.lower_bound(offset);
  uint64_t begin = offset, end = offset + bytes;
  assert(after == by_offset_.end() || after->first >= end);
  if (after != by_offset_.end() && after->first == end) {
    end += after->second;
    Erase(after->first, after->second);
  }
  after = by_offset_.lower_bound(offset);
  if (after != by_offset_.begin()) {
    const auto before = std::prev(after);
    assert(before->first + before->second <= offset);
    if (before->first + before->second == begin) {
      begin = before->first;
      Erase(before->first, before->second);
    }
  }
  Add(begin, end - begin);
}

void RangeAllocator::Add(uint64_t offset, uint64_t bytes) {
  const bool is_new = by_offset_.emplace(offset, bytes).second;
  const bool is_new_size = by_size_.emplace(bytes, offset).second;
  assert(is_new && is_new_size);  // both maps have the same ranges
  free_bytes_ += bytes;
  assert(free_bytes_ >= bytes);
}

void RangeAllocator::Erase(uint64_t offset, uint64_t bytes) {
  const size_t by_offset = by_offset_.erase(offset);
  const size_t by_size = by_size_.erase({bytes, offset});
  assert(by_offset == 1 && by_size == 1);
  assert(free_bytes_ >= bytes);
  free_bytes_ -= bytes;
}

}  // namespace hearth
