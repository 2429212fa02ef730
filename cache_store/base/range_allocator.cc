#include "cache_store/base/range_allocator.h"

#include <cassert>
#include <iterator>

namespace hearth {

std::optional<uint64_t> RangeAllocator::Allocate(uint64_t bytes) {
  assert(bytes > 0);
  const auto best = by_size_.lower_bound({bytes, 0});
  if (best == by_size_.end()) return std::nullopt;
  const auto [found, offset] = *best;
  Erase(offset, found);
  if (found > bytes) Add(offset + bytes, found - bytes);
  return offset;
}

void RangeAllocator::Free(uint64_t offset, uint64_t bytes) {
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
  by_offset_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
  free_bytes_ += bytes;
}

void RangeAllocator::Erase(uint64_t offset, uint64_t bytes) {
  by_offset_.erase(offset);
  by_size_.erase({bytes, offset});
  free_bytes_ -= bytes;
}

}  // namespace hearth
