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

#include "absl/time/time.h"
#include "worker/engine/engine_counters.h"
#include "worker/engine/prefix_pool.h"
#include "worker/engine/request/engine_options.h"
#include "worker/engine/sequence.h"
#include "worker/engine/task_queue.h"
#include "worker/prefix/load_trial.h"

namespace hearth {

class PrefixFetcher {
 public:
  // Up to `max_running` sequences wait for a fetch. `ring`: called from a thread of its own when a
  // fetch has left something.
  PrefixFetcher(const CacheTerms& terms, uint32_t max_running, const KvLayout& layout,
                PrefixPool* pool, EngineCounters* counters, std::function<void()> ring);

  // Whether a cache might have more of it than the pool.
  bool MayHaveMore(const Sequence& sequence) const;
  // True: the result arrives at sequence->fetch. False: nothing will, go on without. `work`: the
  // prefills to be computed, its own and others'.
  bool LookUp(const std::shared_ptr<Sequence>& sequence, PrefixCache* cache, LoadTrial::Work work);
  // Counts what was chosen, and how far off the estimate of a load was. Null: nobody looked.
  LoadReport NoteLoad(const Sequence& sequence, LoadTrial* load);
  // The estimate for a prefix of so many tokens.
  LoadReport Estimate(uint32_t boundary) const;
  LoadModel* loads() { return &loads_; }
  void Stop() { fetches_.Stop(); }

 private:
  uint32_t BestBoundary(const Sequence& sequence) const;
  uint64_t BytesTo(uint32_t boundary) const;
  bool Fetch(const std::shared_ptr<Sequence>& sequence, PrefixCache* cache);
  Fetched FetchInTurn(Sequence* sequence, PrefixCache* cache, uint32_t above_tokens,
                      absl::Time deadline);

  const CacheTerms& terms_;
  const KvLayout& layout_;
  PrefixPool* const pool_;
  EngineCounters* const counters_;
  const std::function<void()> ring_;
  LoadModel loads_;
  TaskQueue fetches_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_PREFIX_FETCHER_H_
