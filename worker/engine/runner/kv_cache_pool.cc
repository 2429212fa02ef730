#include "worker/engine/runner/kv_cache_pool.h"

#include <algorithm>
#include <utility>

namespace hearth {
namespace {

// Capacities are doubled from here, so that a cache fits many later requests. 4,096 tokens of the
// 270M model's global layers are 24 MiB.
constexpr int kMinCapacityTokens = 4096;

bool Smaller(const KvCache& a, const KvCache& b) { return a.capacity() < b.capacity(); }

}  // namespace

KvCachePool::KvCachePool(const Gemma* gemma, int context_tokens, size_t max_free)
    : gemma_(gemma), context_tokens_(context_tokens), max_free_(max_free) {}

absl::StatusOr<KvCache> KvCachePool::Acquire(int tokens) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->capacity() >= tokens && (best == free_.end() || Smaller(*it, *best))) best = it;
  }
  if (best != free_.end()) {
    KvCache kv = std::move(*best);
    free_.erase(best);
    return kv;
  }
  int capacity = kMinCapacityTokens;
  while (capacity < tokens) capacity *= 2;
  return gemma_->NewKvCache(std::max(tokens, std::min(capacity, context_tokens_)));
}

void KvCachePool::Release(KvCache kv) {
  kv.Reset();
  free_.push_back(std::move(kv));
  if (free_.size() > max_free_) {
    free_.erase(std::min_element(free_.begin(), free_.end(), Smaller));
  }
}

}  // namespace hearth
