// Formulas for the RAM of the store's bookkeeping. The store adds and subtracts these costs when
// entries are added and removed; a test compares the sum with the allocator's figure.
#ifndef HEARTH_CACHE_STORE_BASE_MEMORY_COST_H_
#define HEARTH_CACHE_STORE_BASE_MEMORY_COST_H_

#include <algorithm>
#include <cstdint>

namespace hearth {

// Returns the size of the malloc block for `bytes` in glibc: 8 bytes of header, rounded up to 16
// bytes, at least 32.
constexpr uint64_t BlockBytes(uint64_t bytes) {
  return std::max<uint64_t>(32, (bytes + 8 + 15) / 16 * 16);
}

// Returns the RAM of one slot of an absl hash table, with its control byte. A table fills between
// 7/16 and 7/8 of its slots; this formula assumes 7/16, the most expensive case.
constexpr uint64_t SlotBytes(uint64_t bytes) { return (bytes + 1) * 16 / 7 + 1; }

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_MEMORY_COST_H_
