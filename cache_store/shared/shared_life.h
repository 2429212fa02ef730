// The life of a value in the shared engine since its last use, from which the engine, which gives
// up what would end first, has the order of what it gives up: the store and the simulator's fleet
// use the same.
//
// Thread safety: pure functions.
#ifndef HEARTH_CACHE_STORE_SHARED_SHARED_LIFE_H_
#define HEARTH_CACHE_STORE_SHARED_SHARED_LIFE_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace hearth {

// A deeper chunk's life is shorter by so much a chunk, and it is written first: enough to be given
// up before those that were used with it, which are of use without it, and not before what was used
// a little earlier.
inline constexpr absl::Duration kShorterADepth = absl::Milliseconds(1);

// Of the chunk that has `depth` others before it. `ttl`: of a prompt's first one. `whole`: all of
// its tokens are there; only the same prompt, to the token, has use for one that is not.
inline absl::Duration SharedLife(absl::Duration ttl, int64_t depth, bool whole) {
  const absl::Duration life = ttl - std::min(ttl / 8, kShorterADepth * depth);
  return whole ? life : life / 2;
}

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_SHARED_LIFE_H_
