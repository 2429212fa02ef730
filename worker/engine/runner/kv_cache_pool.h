// KvCachePool: keeps KV caches between requests, since the first touch of fresh memory is slow.
//
// Thread safety: none; the engine's thread uses it.
// Ownership: the Gemma must outlive the pool and every cache it gave out.
// Invariant: at most `max_free` caches wait here, each of length 0.
#ifndef HEARTH_WORKER_ENGINE_RUNNER_KV_CACHE_POOL_H_
#define HEARTH_WORKER_ENGINE_RUNNER_KV_CACHE_POOL_H_

#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/torch/gemma.h"
#include "worker/model/torch/kv_cache.h"

namespace hearth {

class KvCachePool {
 public:
  KvCachePool(const Gemma* gemma, int context_tokens, size_t max_free);

  // An empty cache for at least `tokens` tokens: the smallest free one that is large enough.
  absl::StatusOr<KvCache> Acquire(int tokens);
  // When too many wait, the smallest is freed: the larger serve every request it could.
  void Release(KvCache kv);

 private:
  const Gemma* const gemma_;
  const int context_tokens_;
  const size_t max_free_;
  std::vector<KvCache> free_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_KV_CACHE_POOL_H_
