// DenseCache: a cache of blocks, replayed: a block is a unit, and worth nothing without the one
// before it.
//
// Private to cache_store. Thread safety: none.
#ifndef HEARTH_CACHE_STORE_SIMULATE_DENSE_CACHE_H_
#define HEARTH_CACHE_STORE_SIMULATE_DENSE_CACHE_H_

#include <cstdint>
#include <memory>

#include "cache_store/retention/retention.h"
#include "cache_store/simulate/trace.h"

namespace hearth {

class DenseCache {
 public:
  // kLru is the LRU of the published curves: blocks are moved one by one, and one may go while its
  // children stay.
  DenseCache(RetentionPolicy policy, uint64_t capacity_blocks);

  bool Contains(uint32_t block) const { return retention_->Contains(block); }
  // The blocks that are found of this prompt; afterwards as much of it as may stay is kept.
  uint64_t Serve(const TraceRequest& request);

 private:
  const bool one_by_one_;
  const uint64_t capacity_blocks_;
  const std::unique_ptr<Retention> retention_;
  uint64_t number_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SIMULATE_DENSE_CACHE_H_
