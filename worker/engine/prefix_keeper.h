// PrefixKeeper: keeps the boundaries worth keeping of each sequence, in the worker's pool and by a
// publish.
//
// Thread safety: methods with a sequence from the engine's thread alone; the pool, the staging
// budget and the publisher from any thread.
// Ownership: all its arguments must outlive it.
#ifndef HEARTH_WORKER_ENGINE_PREFIX_KEEPER_H_
#define HEARTH_WORKER_ENGINE_PREFIX_KEEPER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/fingerprint.h"
#include "worker/engine/engine_counters.h"
#include "worker/engine/prefix_pool.h"
#include "worker/engine/publisher.h"
#include "worker/engine/request/engine_options.h"
#include "worker/engine/request/engine_request.h"
#include "worker/engine/sequence.h"
#include "worker/engine/staging.h"

namespace hearth {

class PrefixKeeper {
 public:
  PrefixKeeper(const MemoryLimits& memory, absl::Duration publish_timeout, const KvLayout& layout,
               EngineCounters* counters);

  // Keeps boundaries that a step from `begin` on passed; `cache` may be null, here and below.
  void KeepPassed(Sequence* sequence, uint32_t begin, PrefixCache* cache);
  // Once the prompt is computed.
  void Keep(Sequence* sequence, PrefixCache* cache);
  // Once the answer is complete.
  void KeepAnswer(Sequence* sequence, PrefixCache* cache);
  // Keeps the text of a sequence that is about to be preempted, in the pool alone.
  void KeepPreempted(Sequence* sequence);
  // Drops the boundaries that a sequence has staged to keep and publish, and what was restored, for
  // their memory. False: there is none.
  bool ReleaseStaged(Sequence* sequence);
  // Gives the whole prompt to on_snapshot, if that is wanted. kResourceExhausted: staging-bytes is
  // in use; kFailedPrecondition: not in this class. `plain`: the fingerprint of no adapter.
  absl::Status GiveSnapshot(Sequence* sequence, const Fingerprint& plain,
                            const std::vector<AdapterInfo>& adapters);
  // As Engine::AddSnapshot, from any thread.
  absl::StatusOr<std::string> AddSnapshot(const std::string& tenant, const Fingerprint& plain,
                                          const std::vector<AdapterInfo>& adapters,
                                          absl::string_view file);
  // Objects that came from a cache.
  void AddRestoredToPool(const Sequence& sequence);

  bool has_pool() const { return memory_.pool_bytes > 0; }
  PrefixPool& pool() { return pool_; }
  const PrefixPool& pool() const { return pool_; }
  StagingBudget* staging() { return &staging_; }
  uint64_t staged_bytes() const { return staging_.used_bytes(); }
  Publisher& publisher() { return publisher_; }

 private:
  absl::StatusOr<KvObjects> SnapshotOf(const Sequence& sequence);
  void KeepBoundary(Sequence* sequence, uint32_t boundary, PrefixCache* cache);
  void AddKeptToPool(const PrefixRequest& prefix, uint32_t boundary, const KvObjects& objects);
  PrefixPool::InsertResult InsertIntoPool(const PrefixRequest& prefix, uint32_t boundary,
                                          const KvObjects& objects);
  void Publish(Sequence* sequence, PrefixCache* cache);
  bool KeepsAnswer(const Sequence& sequence, PrefixCache* cache) const;

  const MemoryLimits& memory_;
  const KvLayout& layout_;
  EngineCounters* const counters_;
  PrefixPool pool_;
  StagingBudget staging_;
  Publisher publisher_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_PREFIX_KEEPER_H_
