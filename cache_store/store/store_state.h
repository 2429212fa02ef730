// StoreState: a store's bookkeeping, under its one mutex.
//
// `mu` guards bookkeeping and is never held across disk I/O, hashing or callbacks; calls of the RAM
// tier under it move pointers only. Order: `mu` before the tiers' and the event hub's own mutexes.
// What grows with a prompt is done in steps, and others have the lock in between (Yield).
#ifndef HEARTH_CACHE_STORE_STORE_STORE_STATE_H_
#define HEARTH_CACHE_STORE_STORE_STORE_STATE_H_

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "cache_store/base/latency.h"
#include "cache_store/catalog/catalog.h"
#include "cache_store/catalog/evictor.h"
#include "cache_store/catalog/fingerprint_book.h"
#include "cache_store/catalog/history.h"
#include "proto/fingerprint.h"

namespace hearth {

// The numbers to be erased from the disk, kept until the disk has erased them. A disk that is full
// or fails takes no erase; the next erase that succeeds takes all that wait. A start before that
// would bring them back. All manifests are erased before any object, so that no manifest outlives
// an object that it names. A number noted here is never written again.
class Erasures {
 public:
  // In one call: for manifests, a few hundred KiB of the log.
  static constexpr size_t kMaxAtOnce = 4096;
  // Of each kind, 10 MB: beyond, the lowest are left to the next start.
  static constexpr size_t kMaxEntries = size_t{1} << 20;

  struct Objects {
    std::vector<uint64_t> numbers;
    uint64_t bytes = 0;  // what they take on disk
  };

  void AddManifests(absl::Span<const uint64_t> numbers) { Add(numbers, &manifests_); }
  void AddObjects(absl::Span<const uint64_t> numbers, uint64_t bytes) {
    Add(numbers, &objects_);
    object_bytes_ += bytes;
  }
  // Some of them. They stay until they are known to be erased.
  std::vector<uint64_t> SomeManifests() const {
    std::vector<uint64_t> some;
    for (auto it = manifests_.begin(); it != manifests_.end() && some.size() < kMaxAtOnce; ++it) {
      some.push_back(*it);
    }
    return some;
  }
  void ManifestsErased(absl::Span<const uint64_t> numbers) {
    for (const uint64_t number : numbers) manifests_.erase(number);
  }
  // All of them, to be added again if they cannot be erased. REQUIRES: no manifest is left.
  Objects TakeObjects() {
    assert(manifests_.empty());
    Objects taken{{objects_.begin(), objects_.end()}, std::exchange(object_bytes_, 0)};
    objects_.clear();
    return taken;
  }

 private:
  using Numbers = absl::btree_set<uint64_t>;

  static void Add(absl::Span<const uint64_t> numbers, Numbers* to) {
    to->insert(numbers.begin(), numbers.end());
    while (to->size() > kMaxEntries) to->erase(to->begin());
  }

  Numbers manifests_, objects_;
  uint64_t object_bytes_ = 0;
};

// Claims on segment keys, so that of several publishers of one segment only one writes. A claimant
// waits until none of its keys is claimed and takes all at once, so claims cannot deadlock.
class SingleFlight {
 public:
  // REQUIRES: `mu` held. Releases it while waiting; everything read before is stale afterwards.
  void Claim(absl::Mutex* mu, const std::vector<Digest>& keys) {
    mu->AssertHeld();
    const auto free = [this, &keys] {
      for (const Digest& key : keys) {
        if (claimed_.contains(key)) return false;
      }
      return true;
    };
    mu->Await(absl::Condition(&free));
    claimed_.insert(keys.begin(), keys.end());
  }
  void Release(const std::vector<Digest>& keys) {
    for (const Digest& key : keys) claimed_.erase(key);
  }

 private:
  absl::flat_hash_set<Digest> claimed_;
};

// Called between two holds of the lock: a thread that releases it and takes it again at once leaves
// others no chance.
inline void LetOthersIn() { absl::SleepFor(absl::Microseconds(50)); }

struct StoreState {
  // Of up to a microsecond each, under one hold of the lock.
  static constexpr size_t kStepsAHold = 2048;

  StoreState(const Evictor::Limits& limits, RetentionPolicy retention, TenantQuotas quotas,
             Catalog::OnRemoved on_removed)
      : objects(std::move(quotas)),
        catalog(&objects, retention, std::move(on_removed)),
        evictor(limits, &objects, &catalog) {}

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) {
    mu.Lock();
    held_ = Stopwatch();
    steps_ = 0;
  }
  void Unlock() ABSL_UNLOCK_FUNCTION(mu) {
    longest_hold = std::max(longest_hold, absl::FromChrono(held_.Elapsed()));
    mu.Unlock();
  }
  // To be called after each `steps` steps of a walk. True: others had the lock, and pointers read
  // before are stale.
  bool Yield(size_t steps) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    steps_ += steps;
    if (steps_ < kStepsAHold) return false;
    ++yields;
    Unlock();
    let_others_in();
    Lock();
    return true;
  }
  // SingleFlight::Claim: waits, without the lock.
  void AwaitClaim(const std::vector<Digest>& keys) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    longest_hold = std::max(longest_hold, absl::FromChrono(held_.Elapsed()));
    flight.Claim(&mu, keys);
    held_ = Stopwatch();
  }

  // Of the tenant's last drop of all, as its keys have it. 0: none.
  uint64_t DropNumber(const std::string& tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto it = drop_numbers.find(tenant);
    return it == drop_numbers.end() ? 0 : it->second;
  }

  absl::Mutex mu;
  absl::flat_hash_map<std::string, uint64_t> drop_numbers ABSL_GUARDED_BY(mu);
  ObjectTable objects ABSL_GUARDED_BY(mu);
  Catalog catalog ABSL_GUARDED_BY(mu);
  Evictor evictor ABSL_GUARDED_BY(mu);
  SingleFlight flight ABSL_GUARDED_BY(mu);
  FingerprintBook fingerprints ABSL_GUARDED_BY(mu);
  History history ABSL_GUARDED_BY(mu);
  Erasures erasures ABSL_GUARDED_BY(mu);
  absl::Duration longest_hold ABSL_GUARDED_BY(mu);
  uint64_t yields ABSL_GUARDED_BY(mu) = 0;
  std::function<void()> let_others_in = LetOthersIn;  // a test does their work there

 private:
  Stopwatch held_ ABSL_GUARDED_BY(mu);
  size_t steps_ ABSL_GUARDED_BY(mu) = 0;  // of this hold
};

class ABSL_SCOPED_LOCKABLE StateLock {
 public:
  explicit StateLock(StoreState* state) ABSL_EXCLUSIVE_LOCK_FUNCTION(state->mu) : state_(state) {
    state_->Lock();
  }
  ~StateLock() ABSL_UNLOCK_FUNCTION() { state_->Unlock(); }
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  StoreState* const state_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_STATE_H_
