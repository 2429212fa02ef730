// PrefixPool: restore points kept in this worker's memory, least recently used out first.
//
// Filled with the kept points computed here and with the restored ones. A restore point is one unit
// of lookup and eviction; memory that several points share is held and counted once.
//
// Thread safety: all methods from any thread.
// Ownership: shares the objects; a looked-up point stays valid after its eviction.
// Invariants:
//   1. bytes() <= the capacity; a capacity of 0 keeps nothing.
//   2. A point is found only by requests of its tenant and adapter with equal token ids and, in
//      the exact class, equal cuts below it (multiples of C cut every prompt and do not count).
#ifndef HEARTH_WORKER_ENGINE_PREFIX_POOL_H_
#define HEARTH_WORKER_ENGINE_PREFIX_POOL_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "proto/kv_layout.h"
#include "worker/engine/runner/kv_snapshot.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

struct PooledPrefix {
  uint32_t matched_tokens =
      0;  // longest common token prefix with any of the tenant's points, through the same adapter
  uint32_t boundary = 0;  // 0: a miss
  KvObjects objects;      // NeededObjects order
};

class PrefixPool {
 public:
  PrefixPool(uint64_t capacity_bytes, uint32_t chunk_tokens, Exactness exactness);

  // The longest point at most `max_boundary` from which `prefix` may go on.
  PooledPrefix Lookup(const PrefixRequest& prefix, uint32_t max_boundary) ABSL_LOCKS_EXCLUDED(mu_);

  enum class InsertResult { kInserted, kPresent, kDiffers, kTooLarge };
  // Keeps `prefix` up to `boundary`. A point that is present stays; kDiffers: with other bytes,
  // which mean nondeterminism except in the portable class. REQUIRES: `objects` are complete and
  // sealed, in NeededObjects order.
  InsertResult Insert(const PrefixRequest& prefix, uint32_t boundary, const KvObjects& objects)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Removes what `prefix` up to `boundary` may have come from, and what begins with it.
  void Forget(const PrefixRequest& prefix, uint32_t boundary) ABSL_LOCKS_EXCLUDED(mu_);
  void Clear() ABSL_LOCKS_EXCLUDED(mu_);
  // Removes a point to free memory for which `counts` is true: the least recently used one that
  // frees some by itself, else the least recently used one that shares such memory with other
  // points only. False when there is neither.
  bool EvictOne(absl::FunctionRef<bool(const KvObject&)> counts) ABSL_LOCKS_EXCLUDED(mu_);
  // Bytes of such memory that evicting all points would free.
  uint64_t EvictableBytes(absl::FunctionRef<bool(const KvObject&)> counts) const
      ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Point {
    std::string tenant, adapter;
    std::vector<uint32_t> token_ids;   // boundary of them
    std::vector<uint32_t> inner_cuts;  // below the boundary, multiples of C left out
    KvObjects objects;
    uint32_t boundary() const { return static_cast<uint32_t>(token_ids.size()); }
  };
  using Points = std::list<Point>;  // most recently used first

  std::vector<uint32_t> InnerCuts(const PrefixRequest& prefix, uint32_t boundary) const;
  Points::iterator FindExact(const PrefixRequest& prefix, uint32_t boundary)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Evict(Points::iterator point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // How many points hold the object, where nobody else does and it counts; else 0.
  uint32_t OnlyHolders(const std::shared_ptr<const KvObject>& object,
                       absl::FunctionRef<bool(const KvObject&)> counts) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t capacity_bytes_;
  const uint32_t chunk_tokens_;
  const Exactness exactness_;
  mutable absl::Mutex mu_;
  Points points_ ABSL_GUARDED_BY(mu_);
  // By its memory, an object of all points that have it, and how many these are.
  struct Shared {
    std::shared_ptr<const KvObject> object;
    uint32_t points = 0;
  };
  std::map<const std::byte*, Shared> shared_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_PREFIX_POOL_H_
