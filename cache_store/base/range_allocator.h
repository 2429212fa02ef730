// RangeAllocator: allocates ranges of a memory block by best fit, and merges adjacent free ranges.
//
// Does not access the memory itself, which may be host or device memory. Not thread safe: its owner
// has a mutex. Invariant: free ranges neither overlap nor touch each other.
#ifndef HEARTH_CACHE_STORE_BASE_RANGE_ALLOCATOR_H_
#define HEARTH_CACHE_STORE_BASE_RANGE_ALLOCATOR_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"

namespace hearth {

class RangeAllocator {
 public:
  // Allocates a range and returns its offset; nullopt if no free range is long enough.
  std::optional<uint64_t> Allocate(uint64_t bytes);
  // Frees a range. REQUIRES: all of the range is allocated.
  void Free(uint64_t offset, uint64_t bytes);
  uint64_t free_bytes() const { return free_bytes_; }

 private:
  void Add(uint64_t offset, uint64_t bytes);
  void Erase(uint64_t offset, uint64_t bytes);

  absl::btree_map<uint64_t, uint64_t> by_offset_;
  absl::btree_set<std::pair<uint64_t, uint64_t>> by_size_;
  uint64_t free_bytes_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_RANGE_ALLOCATOR_H_
