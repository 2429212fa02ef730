// The order in which restore points are offered to eviction: least recently used first, and of
// those used together (a prefix and what continues it) the longest first, so that children go
// before parents. Not thread safe. Holds no ownership.
#ifndef HEARTH_CACHE_STORE_LRU_ORDER_H_
#define HEARTH_CACHE_STORE_LRU_ORDER_H_

#include <cstdint>
#include <map>
#include <tuple>

namespace hearth {

struct RestorePointEntry;

class LruOrder {
 public:
  // Last use, then the longest first, then the manifest's number to tell equals apart.
  using Rank = std::tuple<uint64_t, uint32_t, uint64_t>;

  void Insert(RestorePointEntry* point);
  void Erase(RestorePointEntry* point);
  // Most to least worth evicting.
  std::map<Rank, RestorePointEntry*>::const_iterator begin() const { return order_.begin(); }
  std::map<Rank, RestorePointEntry*>::const_iterator end() const { return order_.end(); }

 private:
  std::map<Rank, RestorePointEntry*> order_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_LRU_ORDER_H_
