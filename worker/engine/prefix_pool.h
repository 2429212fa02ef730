// PrefixPool: an LRU cache of restore points in this worker's memory.
//
// Holds restore points that were computed here or restored from a cache. A restore point is the KV
// of a prefix up to a token index, its boundary; it is the unit of lookup and eviction. Memory that
// several restore points share is stored and counted once.
//
// Thread safety: all methods may be called from any thread.
// Ownership: shares the objects. Objects returned by Lookup stay valid after eviction.
// Invariants:
//  1. bytes() <= capacity. A pool of capacity 0 stays empty.
//  2. Lookup finds a restore point only for the same tenant, adapter and token ids. In class exact,
//     the request's cuts below the boundary must also be equal. Multiples of C (chunk_tokens) are
//     cuts in every prompt and are not compared.
#ifndef HEARTH_WORKER_ENGINE_PREFIX_POOL_H_
#define HEARTH_WORKER_ENGINE_PREFIX_POOL_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
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
  // longest common prefix with any restore point of the same tenant and adapter
  uint32_t matched_tokens = 0;
  uint32_t boundary = 0;  // token index where the found restore point ends; 0: a miss
  KvObjects objects;      // NeededObjects order
};

class PrefixPool {
 public:
  PrefixPool(uint64_t capacity_bytes, uint32_t chunk_tokens, Exactness exactness);

  // Returns the longest restore point that is a prefix of `prefix` and has at most `max_boundary`
  // tokens.
  PooledPrefix Lookup(const PrefixRequest& prefix, uint32_t max_boundary) ABSL_LOCKS_EXCLUDED(mu_);

  enum class InsertResult { kInserted, kPresent, kDiffers, kTooLarge };
  // Adds a restore point: `prefix` up to `boundary`. If the pool has it already, the old objects
  // stay, and the result is kPresent, or kDiffers if the bytes differ. Except in class portable,
  // kDiffers proves nondeterminism. REQUIRES: `objects` are sealed or late, in NeededObjects order.
  InsertResult Insert(const PrefixRequest& prefix, uint32_t boundary, const KvObjects& objects)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Replaces objects by `objects`, which have the same bytes and also a device block. If an object
  // has been replaced before, it keeps its block: sequences that restored the same bytes at the
  // same time then leave a block each.
  void UseDeviceBlocks(const KvObjects& objects) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the first `boundary` tokens of `prefix`. Removes every restore point that is a prefix of
  // these tokens or begins with them.
  void Forget(const PrefixRequest& prefix, uint32_t boundary) ABSL_LOCKS_EXCLUDED(mu_);
  void Clear() ABSL_LOCKS_EXCLUDED(mu_);
  // Evicts one restore point to free objects for which `counts` is true: the least recently used
  // one whose eviction alone frees such an object; otherwise the least recently used one that
  // shares such an object only with other restore points. Returns false if there is no such restore
  // point.
  bool EvictOne(absl::FunctionRef<bool(const KvObject&)> counts) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the bytes of objects, among those for which `counts` is true, that evicting all restore
  // points would free.
  uint64_t EvictableBytes(absl::FunctionRef<bool(const KvObject&)> counts) const
      ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Point {
    std::string tenant, adapter;
    std::vector<uint32_t> token_ids;   // their number is the boundary
    std::vector<uint32_t> inner_cuts;  // cuts below the boundary, except multiples of C
    KvObjects objects;
    uint32_t boundary() const { return static_cast<uint32_t>(token_ids.size()); }
  };
  using Points = std::list<Point>;  // most recently used first

  std::vector<uint32_t> InnerCuts(const PrefixRequest& prefix, uint32_t boundary) const;
  // Adds a restore point. If the pool has it already, returns its objects.
  std::optional<KvObjects> AddOrFind(const PrefixRequest& prefix, uint32_t boundary,
                                     const KvObjects& objects) ABSL_LOCKS_EXCLUDED(mu_);
  Points::iterator FindExact(const PrefixRequest& prefix, uint32_t boundary)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Evict(Points::iterator point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the number of restore points that hold the object. Returns 0 if anything outside the
  // pool also holds it, or if `counts` is false for it.
  uint32_t OnlyHolders(const std::shared_ptr<const KvObject>& object,
                       absl::FunctionRef<bool(const KvObject&)> counts) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t capacity_bytes_;
  const uint32_t chunk_tokens_;
  const Exactness exactness_;
  mutable absl::Mutex mu_;
  Points points_ ABSL_GUARDED_BY(mu_);
  // By address of the memory: one object, and the number of restore points that hold it.
  struct Shared {
    std::shared_ptr<const KvObject> object;
    uint32_t points = 0;
  };
  std::map<const std::byte*, Shared> shared_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_PREFIX_POOL_H_
