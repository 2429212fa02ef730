// PrefixFetcher: fetches a prompt's prefix from the cache if loading is expected to be faster than
// computing. Measures the speed of loading and of computing.
//
// Thread safety: LookUp by the engine's thread only; other methods by any thread. Fetches run on
// the fetcher's threads. Ownership: all arguments must outlive the fetcher.
#ifndef HEARTH_WORKER_ENGINE_PREFIX_FETCHER_H_
#define HEARTH_WORKER_ENGINE_PREFIX_FETCHER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "worker/engine/engine_counters.h"
#include "worker/engine/prefix_pool.h"
#include "worker/engine/request/engine_options.h"
#include "worker/engine/sequence.h"
#include "worker/engine/task_queue.h"
#include "worker/prefix/load_model.h"

namespace hearth {

class PrefixFetcher {
 public:
  // At most `max_running` sequences may wait for a fetch. `wake` is called from a fetch thread when
  // a result is available in sequence->fetch.
  PrefixFetcher(const CacheTerms& terms, uint32_t max_running, const KvLayout& layout,
                PrefixPool* pool, EngineCounters* counters, std::function<void()> wake);

  // Returns whether a cache may have a longer prefix of the sequence than the worker's pool.
  bool MayHaveMore(const Sequence& sequence) const;
  // Starts a fetch and returns nullopt: the result arrives in sequence->fetch. If no fetch is
  // started, returns the result at once.
  std::optional<FetchOutcome> LookUp(const std::shared_ptr<Sequence>& sequence, PrefixCache* cache,
                                     const LoadWork& work);
  // Counts whether the prefix was loaded, and compares the estimated with the actual time. Returns
  // `load` with the final decision.
  LoadReport NoteLoad(const Sequence& sequence, LoadReport load);
  // Estimates the time to load a prefix of `boundary` tokens, and the time to compute it.
  LoadReport Estimate(uint32_t boundary) const;
  // Gives objects back to the cache. Lent objects are released on a fetch thread, because the end
  // of the store's call can block.
  void Return(KvObjects objects);
  LoadModel* loads() { return &loads_; }
  void Stop() { fetches_.Stop(); }

 private:
  uint32_t BestBoundary(const Sequence& sequence) const;
  FetchOutcome Fetch(PrefixCache* cache, const PrefixRequest& prefix, uint32_t above_tokens,
                     uint32_t max_tokens, absl::Duration timeout);
  FetchOutcome FetchWithLease(Sequence* sequence, PrefixCache* cache, const LoadWork& work,
                              absl::Time deadline);

  const CacheTerms& terms_;
  const KvLayout& layout_;
  PrefixPool* const pool_;
  EngineCounters* const counters_;
  const std::function<void()> wake_;
  LoadModel loads_;
  TaskQueue fetches_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_PREFIX_FETCHER_H_
