// SharedLives: how long values live in the shared engine since their last use, and which uses are
// worth telling it.
//
// The engine gives up first what would end first, so it has its order from the ends. Stores and the
// simulator's fleet run this code, so that the one finds what the other said.
//
// Thread safety: none. Ownership: holds digests and times only, 16 bytes for each of kMaxPrompts.
#ifndef HEARTH_CACHE_STORE_SHARED_SHARED_LIVES_H_
#define HEARTH_CACHE_STORE_SHARED_SHARED_LIVES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace hearth {

class SharedLives {
 public:
  // A deeper chunk's life is shorter by so much a chunk, and it is written first: enough to be
  // given up before those that were used with it, which are of use without it, and not before what
  // was used a little earlier.
  static constexpr absl::Duration kShorterADepth = absl::Milliseconds(1);
  // Uses of one prompt that are closer together count as one.
  static constexpr absl::Duration kRest = absl::Minutes(1);
  static constexpr size_t kMaxPrompts = 65'536;

  // `ttl`: the life of a prompt's first chunk.
  explicit SharedLives(absl::Duration ttl) : rest_(std::min(ttl / 16, kRest)) {}

  // Of the chunk that has `depth` others before it. `whole`: all of its tokens are there; only the
  // same prompt, to the token, has use for one that is not. Whole milliseconds.
  static absl::Duration LifeOf(absl::Duration ttl, int64_t depth, bool whole) {
    const absl::Duration life = ttl - std::min(ttl / 8, kShorterADepth * depth);
    return absl::Floor(whole ? life : life / 2, absl::Milliseconds(1));
  }
  // Whether a use of the prompt with this digest puts the ends of its values off. It counts as one
  // that does. What is written, or would be if it were not there, begins its life in any case.
  bool PutsOff(uint64_t prompt, absl::Time now) {
    if (uses_.size() >= kMaxPrompts) uses_.clear();
    absl::Time& last = uses_.try_emplace(prompt, absl::InfinitePast()).first->second;
    if (now - last < rest_) return false;
    last = now;
    return true;
  }

 private:
  const absl::Duration rest_;
  absl::flat_hash_map<uint64_t, absl::Time> uses_;  // the last that put ends off
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_SHARED_LIVES_H_
