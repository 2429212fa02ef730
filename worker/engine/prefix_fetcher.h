// PrefixFetcher: fetches the cached part of a sequence's prompt, where that is worth it, and learns
// what loading and computing cost.
//
// Thread safety: LookUp by the engine's thread; the rest from any thread. Fetches run on threads of
// its own. Ownership: all its arguments must outlive it.
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
  // Up to `max_running` sequences wait for a fetch. `wake_engine`: called from a thread of its own
  // when a result is at sequence->fetch.
  PrefixFetcher(const CacheTerms& terms, uint32_t max_running, const KvLayout& layout,
                PrefixPool* pool, EngineCounters* counters, std::function<void()> wake_engine);

  // Whether a cache might have more of it than the pool.
  bool MayHaveMore(const Sequence& sequence) const;
  // Nothing: the result arrives at sequence->fetch. Else there is nothing to wait for.
  std::optional<FetchOutcome> LookUp(const std::shared_ptr<Sequence>& sequence, PrefixCache* cache,
                                     const LoadWork& work);
  // Counts the decision, and how far off the estimate of a load was. Returns the decision that the
  // restored sequence came to.
  LoadReport NoteLoad(const Sequence& sequence, LoadReport load);
  // The estimate for a prefix of so many tokens.
  LoadReport Estimate(uint32_t boundary) const;
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
  const std::function<void()> wake_engine_;
  LoadModel loads_;
  TaskQueue fetches_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_PREFIX_FETCHER_H_
