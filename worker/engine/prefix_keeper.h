// PrefixKeeper: puts the boundaries worth keeping of each sequence into the worker's pool, and
// publishes them.
//
// Thread safety: methods that take a sequence by the engine's thread only; the pool, the staging
// budget and the publisher by any thread.
// Ownership: all arguments must outlive it.
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

  // Keeps the boundaries that a step from token `begin` passed. `cache` may be null, here and
  // below.
  void KeepPassed(Sequence* sequence, uint32_t begin, PrefixCache* cache);
  // Keeps the prompt's boundaries. Call after the prompt is computed.
  void Keep(Sequence* sequence, PrefixCache* cache);
  // Keeps the prompt with its answer. Call after the answer is complete.
  void KeepAnswer(Sequence* sequence, PrefixCache* cache);
  // Puts the text of a sequence into the pool before it is preempted. Does not publish.
  void KeepPreempted(Sequence* sequence);
  // Releases the sequence's staged boundaries and restored objects to free their memory. Returns
  // false if it has none.
  bool ReleaseStaged(Sequence* sequence);
  // Passes a snapshot of the whole prompt to on_snapshot, if set. `plain`: the fingerprint without
  // an adapter. kResourceExhausted: staging-bytes is full. kFailedPrecondition: this class has no
  // snapshots.
  absl::Status GiveSnapshot(Sequence* sequence, const Fingerprint& plain,
                            const std::vector<AdapterInfo>& adapters);
  // As Engine::AddSnapshot. Any thread.
  absl::StatusOr<std::string> AddSnapshot(const std::string& tenant, const Fingerprint& plain,
                                          const std::vector<AdapterInfo>& adapters,
                                          absl::string_view file);
  // Puts objects that came from a cache into the pool.
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
