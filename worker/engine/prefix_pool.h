// PrefixPool: an LRU cache of restore points in this worker's memory.
//
// Holds boundaries computed here and restored ones. A restore point (a prefix up to a boundary) is
// the unit of lookup and eviction. Memory shared by several points is stored and counted once.
//
// Thread safety: all methods may be called from any thread.
// Ownership: shares the objects; the objects of a lookup stay valid after eviction.
// Invariants:
//  1. bytes() <= the capacity; a capacity of 0 keeps nothing.
//  2. A point is found only by requests with its tenant, adapter and token ids and, in the class
//     exact, equal cuts below it (multiples of C cut every prompt and do not count).
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
  uint32_t matched_tokens = 0;  // longest match with any of the tenant's points of the same adapter
  uint32_t boundary = 0;        // 0: a miss
  KvObjects objects;            // NeededObjects order
};

class PrefixPool {
 public:
  PrefixPool(uint64_t capacity_bytes, uint32_t chunk_tokens, Exactness exactness);

  // Returns the longest point of at most `max_boundary` tokens from which `prefix` may continue.
  PooledPrefix Lookup(const PrefixRequest& prefix, uint32_t max_boundary) ABSL_LOCKS_EXCLUDED(mu_);

  enum class InsertResult { kInserted, kPresent, kDiffers, kTooLarge };
  // Keeps `prefix` up to `boundary`. An existing point stays. kDiffers: it has other bytes, which
  // proves nondeterminism except in the portable class. REQUIRES: `objects` are complete and
  // sealed, in NeededObjects order.
  InsertResult Insert(const PrefixRequest& prefix, uint32_t boundary, const KvObjects& objects)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Removes all points that are a prefix of the first `boundary` tokens of `prefix`, or extend
  // them.
  void Forget(const PrefixRequest& prefix, uint32_t boundary) ABSL_LOCKS_EXCLUDED(mu_);
  void Clear() ABSL_LOCKS_EXCLUDED(mu_);
  // Evicts a point to free memory for which `counts` is true: the least recently used point that
  // frees some by itself, else the least recently used point that shares such memory with other
  // points only. Returns false if there is neither.
  bool EvictOne(absl::FunctionRef<bool(const KvObject&)> counts) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the bytes of such memory that evicting all points would free.
  uint64_t EvictableBytes(absl::FunctionRef<bool(const KvObject&)> counts) const
      ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Point {
    std::string tenant, adapter;
    std::vector<uint32_t> token_ids;   // size is the boundary
    std::vector<uint32_t> inner_cuts;  // cuts below the boundary, without multiples of C
    KvObjects objects;
    uint32_t boundary() const { return static_cast<uint32_t>(token_ids.size()); }
  };
  using Points = std::list<Point>;  // most recently used first

  std::vector<uint32_t> InnerCuts(const PrefixRequest& prefix, uint32_t boundary) const;
  Points::iterator FindExact(const PrefixRequest& prefix, uint32_t boundary)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Evict(Points::iterator point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the number of points that hold the object, or 0 if anything else holds it or it does
  // not count.
  uint32_t OnlyHolders(const std::shared_ptr<const KvObject>& object,
                       absl::FunctionRef<bool(const KvObject&)> counts) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t capacity_bytes_;
  const uint32_t chunk_tokens_;
  const Exactness exactness_;
  mutable absl::Mutex mu_;
  Points points_ ABSL_GUARDED_BY(mu_);
  // One object per memory block, and how many points share it. Keyed by address.
  struct Shared {
    std::shared_ptr<const KvObject> object;
    uint32_t points = 0;
  };
  std::map<const std::byte*, Shared> shared_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_PREFIX_POOL_H_
