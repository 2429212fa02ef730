// SharedEnds: the ends that were sealed into objects' heads, of those that this store wrote or
// read.
//
// An object whose head says that it ends before a publish of it does has to be written anew; the
// engine could tell only by the whole head.
//
// Thread safety: all methods from any thread.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_ENDS_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_ENDS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace hearth {

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

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_ENDS_H_
