// A dense cache replayed: a block is a unit, and worth nothing without the one before it.
// Private to cache_store. Pure, thread safe.
#ifndef HEARTH_CACHE_STORE_SIMULATE_SIMULATE_DENSE_H_
#define HEARTH_CACHE_STORE_SIMULATE_SIMULATE_DENSE_H_

#include <cstdint>

#include "cache_store/retention/retention.h"
#include "cache_store/simulate/trace.h"

namespace hearth {

// Blocks found over the whole trace with room for `capacity_blocks`. kLru is the LRU of the
// published curves: blocks are moved one by one, and one may go while its children stay.
uint64_t DenseHits(const Trace& trace, RetentionPolicy policy, uint64_t capacity_blocks);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SIMULATE_SIMULATE_DENSE_H_
