// EngineAudit: recomputes restored prefixes while the engine is idle, to check the cache's bytes.
//
// An audit computes a prefix one step per round, so that a new request waits for one step only.
// Then it fetches the prefix again, compares, and quarantines wrong objects. Only the tokens are
// stored until the audit: the bytes would take as much memory as the pool.
//
// Thread safety: the engine's thread only; calls to the cache run on a thread of their own.
// Ownership: all arguments must outlive it.
#ifndef HEARTH_WORKER_ENGINE_ENGINE_AUDIT_H_
#define HEARTH_WORKER_ENGINE_ENGINE_AUDIT_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "proto/kv_layout.h"
#include "worker/engine/engine_counters.h"
#include "worker/engine/prefix_pool.h"
#include "worker/engine/request/engine_options.h"
#include "worker/engine/runner/model_runner.h"
#include "worker/engine/sequence.h"
#include "worker/engine/task_queue.h"
#include "worker/model/sequence_kv.h"

namespace hearth {

// Comparison of a cache's bytes with this worker's bytes.
//
// If a worker publishes wrong bytes under right keys, all others use them: keys and digests prove
// only that the bytes are the published ones. Recomputing is the only proof that they are right.
// Thread safety: pure functions; each KV is used by one thread at a time.

// In the portable class, keys and values of one layer and object agree if the root of (sum of
// squared differences / sum of squares) is at most this. Rounding over some 60 layers adds up to
// about 0.001 in float32 and a few hundredths in bfloat16; rows of another token differ by about 1.
inline constexpr double kFloat32Tolerance = 0.01;
inline constexpr double kHalfTolerance = 0.125;

// Returns the objects of `boundary` whose rows differ, as far as a restore reads them: in any bit,
// or in the portable class by more than rounding. Ascending.
// REQUIRES: both caches are of `layout` and have the length `boundary`.
std::vector<ObjectId> DifferingObjects(const KvLayout& layout, uint32_t boundary,
                                       const SequenceKv& computed, const SequenceKv& restored);

class EngineAudit {
 public:
  // `wake`: called from another thread when a fetch has ended.
  EngineAudit(const CacheTerms& terms, const KvLayout& layout, ModelRunner* model, PrefixPool* pool,
              EngineCounters* counters, std::function<void()> wake);

  // Offers a restored prefix; a share of them is audited later.
  void Offer(const Sequence& sequence);
  bool HasWork() const;
  // Runs one step of the audit. REQUIRES: HasWork().
  void Step(PrefixCache* cache);
  bool is_under_way() const { return audit_ != nullptr; }
  // Aborts the running audit. REQUIRES: is_under_way().
  void Skip();
  // Waits for the calls to the cache. REQUIRES: the last call.
  void Stop() { calls_.Stop(); }

 private:
  struct Audit {
    PrefixRequest prefix;  // up to the restored boundary
    std::unique_ptr<SequenceKv> kv;
    std::vector<uint32_t> step_ends;
    size_t next_step = 0;
    const std::shared_ptr<FetchWait> fetch = std::make_shared<FetchWait>();
    uint32_t boundary() const { return static_cast<uint32_t>(prefix.token_ids.size()); }
  };
  absl::Status TryStep(PrefixCache* cache);
  absl::Status Fetch(PrefixCache* cache);
  absl::Status Finish(PrefixCache* cache);
  void QuarantineWrong(std::vector<ObjectId> wrong, PrefixCache* cache);
  void End();

  const CacheTerms& terms_;
  const KvLayout& layout_;
  ModelRunner* const model_;
  PrefixPool* const pool_;
  EngineCounters* const counters_;
  const std::function<void()> wake_;
  std::deque<PrefixRequest> waiting_;
  std::unique_ptr<Audit> audit_;  // the running audit, or null
  double credit_ = 0;
  TaskQueue calls_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ENGINE_AUDIT_H_
