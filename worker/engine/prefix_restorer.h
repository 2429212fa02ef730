// PrefixRestorer: restores a sequence's prefix from fetched objects, or from the worker's pool, or
// not at all. Also plans the boundaries at which the sequence's KV will be saved.
//
// Thread safety: the engine's thread only. Ownership: all arguments must outlive the restorer.
#ifndef HEARTH_WORKER_ENGINE_PREFIX_RESTORER_H_
#define HEARTH_WORKER_ENGINE_PREFIX_RESTORER_H_

#include "absl/status/status.h"
#include "worker/engine/engine_counters.h"
#include "worker/engine/kv_memory.h"
#include "worker/engine/prefix_fetcher.h"
#include "worker/engine/prefix_keeper.h"
#include "worker/engine/request/engine_request.h"
#include "worker/engine/runner/model_runner.h"
#include "worker/engine/sequence.h"

namespace hearth {

class PrefixRestorer {
 public:
  PrefixRestorer(const KvLayout& layout, ModelRunner* model, PrefixFetcher* fetcher,
                 PrefixKeeper* keeper, KvMemory* memory, EngineCounters* counters)
      : layout_(layout),
        model_(model),
        fetcher_(fetcher),
        keeper_(keeper),
        memory_(memory),
        counters_(counters) {}

  // Restores the prefix. Counts and ignores fetched objects that do not match the request.
  // `has_cache`: saved restore points can be published.
  absl::Status Restore(Sequence* sequence, FetchOutcome fetched, bool has_cache);

 private:
  bool IsUsable(const Sequence& sequence, FetchOutcome* fetched) const;  // also sorts the objects
  void TakePooled(const KvObjects& pooled, KvObjects* objects) const;
  void ChooseSource(Sequence* sequence, FetchOutcome fetched);
  void PlanKept(Sequence* sequence, bool has_cache);
  absl::Status Prepare(Sequence* sequence, bool has_cache);
  void DropRestored(Sequence* sequence);

  const KvLayout& layout_;
  ModelRunner* const model_;
  PrefixFetcher* const fetcher_;
  PrefixKeeper* const keeper_;
  KvMemory* const memory_;
  EngineCounters* const counters_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_PREFIX_RESTORER_H_
