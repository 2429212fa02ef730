#include "cache_store/lru_order.h"

#include <cassert>

#include "cache_store/catalog.h"

namespace hearth {
namespace {

LruOrder::Rank RankOf(const RestorePointEntry& point) {
  return {point.tick, ~point.tokens(), point.number};
}

}  // namespace

void LruOrder::Insert(RestorePointEntry* point) {
  const bool inserted = order_.emplace(RankOf(*point), point).second;
  assert(inserted);
  (void)inserted;
}

void LruOrder::Erase(RestorePointEntry* point) {
  const size_t erased = order_.erase(RankOf(*point));
  assert(erased == 1);
  (void)erased;
}

}  // namespace hearth
