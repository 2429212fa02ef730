// SharedTtlPolicy: computes the time to live of values in the shared engine, and decides which uses
// extend it.
//
// The engine evicts values with the earliest expiry first, so the expiries define its eviction
// order. Stores and the fleet simulator share this code, so that the simulator's results are valid
// for stores. Thread safety: none. Stores a digest and a time, 16 bytes, for each of kMaxPrompts
// prompts.
#ifndef HEARTH_CACHE_STORE_SHARED_SHARED_TTL_POLICY_H_
#define HEARTH_CACHE_STORE_SHARED_SHARED_TTL_POLICY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace hearth {

class SharedTtlPolicy {
 public:
  // The time to live decreases by this for each further chunk of a prompt. A later chunk is useless
  // without the chunks before it, so it is evicted before them (but after values that were used
  // slightly earlier).
  static constexpr absl::Duration kTtlStepPerChunk = absl::Milliseconds(1);
  // Uses of a prompt within this time, or within ttl / 16 if that is shorter, count as one use.
  static constexpr absl::Duration kMinUseInterval = absl::Minutes(1);
  static constexpr size_t kMaxPrompts = 65'536;

  // `ttl`: the time to live of the first chunk of a prompt.
  explicit SharedTtlPolicy(absl::Duration ttl) : rest_(std::min(ttl / 16, kMinUseInterval)) {}

  // Returns the time to live of the chunk with number `depth` (from 0), in whole milliseconds.
  // `whole`: the chunk is not partial. A partial chunk lives half as long, because only exactly the
  // same prompt can use it.
  static absl::Duration TtlOf(absl::Duration ttl, int64_t depth, bool whole) {
    const absl::Duration life = ttl - std::min(ttl / 8, kTtlStepPerChunk * depth);
    return absl::Floor(whole ? life : life / 2, absl::Milliseconds(1));
  }
  // Returns whether a use of this prompt at `now` extends the expiry of its values; if so, records
  // the use. Values that are written, or that a writer finds in the engine, get a new time to live
  // in any case.
  bool ExtendsExpiry(uint64_t prompt, absl::Time now) {
    if (uses_.size() >= kMaxPrompts) uses_.clear();
    absl::Time& last = uses_.try_emplace(prompt, absl::InfinitePast()).first->second;
    if (now - last < rest_) return false;
    last = now;
    return true;
  }

 private:
  const absl::Duration rest_;
  absl::flat_hash_map<uint64_t, absl::Time>
      uses_;  // prompt digest -> time of the last use that extended expiries
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_SHARED_TTL_POLICY_H_
