// Formulas for the RAM of bookkeeping. The store sums them as entries come and go; a test compares
// the sum with the allocator's figure. Pure functions.
#ifndef HEARTH_CACHE_STORE_BASE_MEMORY_COST_H_
#define HEARTH_CACHE_STORE_BASE_MEMORY_COST_H_

#include <algorithm>
#include <cstdint>

namespace hearth {

// Size of a glibc malloc block: an 8-byte header, rounded up to 16 bytes, at least 32.
constexpr uint64_t BlockBytes(uint64_t bytes) {
  return std::max<uint64_t>(32, (bytes + 8 + 15) / 16 * 16);
}

// Cost of a slot of an absl hash table with its control byte. A table uses between 7/16 and 7/8 of
// its slots. This formula assumes 7/16, so doubling the table costs no more than was counted.
constexpr uint64_t SlotBytes(uint64_t bytes) { return (bytes + 1) * 16 / 7 + 1; }

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_MEMORY_COST_H_
