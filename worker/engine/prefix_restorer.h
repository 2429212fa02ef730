// PrefixRestorer: restores a sequence's prefix from fetched objects, else from the worker's pool,
// else not at all; and plans the boundaries to keep.
//
// Thread safety: the engine's thread only. Ownership: all arguments must outlive it.
#ifndef HEARTH_WORKER_ENGINE_PREFIX_RESTORER_H_
#define HEARTH_WORKER_ENGINE_PREFIX_RESTORER_H_

#include "absl/status/status.h"
#include "worker/engine/engine_counters.h"
#include "worker/engine/kv_memory.h"
#include "worker/engine/prefix_keeper.h"
#include "worker/engine/request/engine_request.h"
#include "worker/engine/runner/model_runner.h"
#include "worker/engine/sequence.h"

namespace hearth {

class PrefixRestorer {
 public:
  PrefixRestorer(const KvLayout& layout, ModelRunner* model, PrefixKeeper* keeper, KvMemory* memory,
                 EngineCounters* counters)
      : layout_(layout), model_(model), keeper_(keeper), memory_(memory), counters_(counters) {}

  // Restores the prefix. Fetched objects that do not fit the request are ignored and counted.
  // `has_cache`: kept boundaries may be published.
  absl::Status Restore(Sequence* sequence, FetchOutcome fetched, bool has_cache);

 private:
  bool IsUsable(const Sequence& sequence, FetchOutcome* fetched) const;  // sorts the objects
  void TakePooled(const KvObjects& pooled, KvObjects* objects) const;
  void ChooseSource(Sequence* sequence, FetchOutcome fetched);
  void PlanKept(Sequence* sequence, bool has_cache);
  absl::Status Prepare(Sequence* sequence, bool has_cache);
  void DropRestored(Sequence* sequence);

  const KvLayout& layout_;
  ModelRunner* const model_;
  PrefixKeeper* const keeper_;
  KvMemory* const memory_;
  EngineCounters* const counters_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_PREFIX_RESTORER_H_
