// SharedLives: how long values live in the shared engine since their last use, and which uses are
// worth telling it. SharedEnds: which values end by themselves before.
//
// The engine gives up first what would end first, so it has its order from the ends. Stores and the
// simulator's fleet run this code, so that the one finds what the other said.
//
// Thread safety: SharedLives none; SharedEnds all methods from any thread. Ownership: hold digests,
// names and times only, 16 bytes for each of kMaxPrompts.
#ifndef HEARTH_CACHE_STORE_SHARED_SHARED_LIVES_H_
#define HEARTH_CACHE_STORE_SHARED_SHARED_LIVES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
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

// The ends that were sealed into objects' heads, of those that this store wrote or read. An object
// whose head says that it ends before a publish of it does has to be written anew; the engine could
// tell only by the whole head.
class SharedEnds {
 public:
  // Some 100 bytes each. Beyond, what has ended is forgotten, and then the rest.
  static constexpr size_t kMaxHeads = 16'384;

  // `unix_s`: as in the head; 0: it has no end.
  void Note(const std::string& head, uint64_t unix_s, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (unix_s == 0) {
      ends_.erase(head);
      return;
    }
    const uint64_t now_s = static_cast<uint64_t>(absl::ToUnixSeconds(now));
    if (ends_.size() >= kMaxHeads) {
      absl::erase_if(ends_, [&](const auto& entry) { return entry.second <= now_s; });
    }
    if (ends_.size() >= kMaxHeads) ends_.clear();
    ends_[head] = unix_s;
  }
  // Whether it is known to end before `time`, by a second at least.
  bool IsBefore(const std::string& head, absl::Time time) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto it = ends_.find(head);
    if (it == ends_.end()) return false;
    return absl::FromUnixSeconds(static_cast<int64_t>(it->second)) + absl::Seconds(1) <= time;
  }

 private:
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, uint64_t> ends_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_SHARED_LIVES_H_
