// Formulas for the RAM of bookkeeping. The store adds them up as entries come and go; a test
// compares the sum with the allocator's. Pure functions.
#ifndef HEARTH_CACHE_STORE_BASE_MEMORY_COST_H_
#define HEARTH_CACHE_STORE_BASE_MEMORY_COST_H_

#include <algorithm>
#include <cstdint>

namespace hearth {

// A block of glibc's malloc: 8 bytes in front of it, in steps of 16, at least 32.
constexpr uint64_t BlockBytes(uint64_t bytes) {
  return std::max<uint64_t>(32, (bytes + 8 + 15) / 16 * 16);
}

// A slot of an absl hash table with its control byte. A table has between 7/16 and 7/8 of its slots
// in use: the worst case counts, so that a table that doubles costs no more than was counted.
constexpr uint64_t SlotBytes(uint64_t bytes) { return (bytes + 1) * 16 / 7 + 1; }

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_MEMORY_COST_H_
