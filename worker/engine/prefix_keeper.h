// PrefixKeeper: for each sequence, saves restore points in the worker's pool and publishes them to
// the cache.
//
// Thread safety: methods that take a sequence: the engine's thread only. The pool, the staging
// budget and the publisher: any thread.
// Ownership: all arguments must outlive the keeper.
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

  // Saves the planned restore points in (begin, position], which the last step reached. `cache` may
  // be null, also in Keep and KeepAnswer: then nothing is published.
  void KeepPassed(Sequence* sequence, uint32_t begin, PrefixCache* cache);
  // Saves the restore points of the prompt. Call after the prompt is computed.
  void Keep(Sequence* sequence, PrefixCache* cache);
  // Saves a restore point at the end of the answer. Call after the answer is complete.
  void KeepAnswer(Sequence* sequence, PrefixCache* cache);
  // Adds a restore point at the sequence's last computed token to the pool, but does not publish
  // it. Call before the sequence is preempted.
  void KeepPreempted(Sequence* sequence);
  // Releases the sequence's staged copies and restored objects to free their memory. Returns false
  // if the sequence has none.
  bool ReleaseStaged(Sequence* sequence);
  // Passes a snapshot of the whole prompt to on_snapshot, if it is set. `plain`: the model's
  // fingerprint without an adapter. kResourceExhausted: staging-bytes is full. kFailedPrecondition:
  // this exactness class has no snapshots.
  absl::Status GiveSnapshot(Sequence* sequence, const Fingerprint& plain,
                            const std::vector<AdapterInfo>& adapters);
  // Implements Engine::AddSnapshot. `plain`: the model's fingerprint without an adapter. Any
  // thread.
  absl::StatusOr<std::string> AddSnapshot(const std::string& tenant, const Fingerprint& plain,
                                          const std::vector<AdapterInfo>& adapters,
                                          absl::string_view file);
  // Adds the restored prefix to the pool if it came from a cache.
  void AddRestoredToPool(const Sequence& sequence);
  // If the KV is on a device, adds the sequence's blocks to the pool's objects of the restored
  // prefix. Call after each step that computes prompt tokens.
  void ShareRestored(Sequence* sequence);

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
