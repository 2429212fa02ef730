// The hits of a cache that knows the future. Private to cache_store. Pure, thread safe.
#ifndef HEARTH_CACHE_STORE_SIMULATE_SIMULATE_OPTIMUM_H_
#define HEARTH_CACHE_STORE_SIMULATE_SIMULATE_OPTIMUM_H_

#include <cstdint>

#include "cache_store/simulate/simulate.h"
#include "cache_store/simulate/trace.h"

namespace hearth {

// The optimum of a dense cache, in blocks found with room for `capacity_blocks`. Belady's rule on a
// prefix tree: of the blocks held, the one whose next use is farthest goes, of equals the deepest;
// and a block that is not used again is not kept at all.
uint64_t OptimumHits(const Trace& trace, uint64_t capacity_blocks);

// Belady's rule on restore points, in tokens restored: the one whose next use is farthest goes,
// where a use is a request that no longer point serves.
uint64_t OptimumRestoredTokens(const Trace& trace, const ModelShape& model, double capacity);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SIMULATE_SIMULATE_OPTIMUM_H_
