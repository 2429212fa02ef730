// EngineAudit: recomputes restored prefixes while the engine is idle, to detect wrong bytes in the
// cache.
//
// An audit computes a prefix with one step per round, so that a new request waits for at most one
// step. After the last step the audit fetches the prefix from the cache again, compares both, and
// quarantines wrong objects. Until the audit starts only the token ids are stored: the KV would
// take as much memory as the pool.
//
// Thread safety: the engine's thread only; calls to the cache run on a separate thread. Ownership:
// all arguments must outlive the audit.
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

// Comparison of the cache's KV with the KV that this worker computes.
//
// If a worker publishes wrong KV under correct keys, all workers use it: keys and digests prove
// only that the bytes are the published bytes. Only recomputing detects wrong KV. Thread safety:
// pure functions; each KV is used by one thread at a time.

// Tolerances of class portable: keys (and values) of one layer and object agree if sqrt(sum of
// squared differences / sum of squares) is at most the tolerance. Rounding over some 60 layers adds
// up to about 0.001 in float32 and a few hundredths in bfloat16; rows of a different token differ
// by about 1.
inline constexpr double kFloat32Tolerance = 0.01;
inline constexpr double kHalfTolerance = 0.125;

// Returns the ids of the objects of `boundary` in which `computed` and `restored` differ,
// ascending. Compares only rows that a restore reads. In class portable, differences within the
// tolerance do not count; in the other classes every bit counts.
// REQUIRES: `computed` and `restored` have layout `layout` and length `boundary`.
std::vector<ObjectId> DifferingObjects(const KvLayout& layout, uint32_t boundary,
                                       const SequenceKv& computed, const SequenceKv& restored);

class EngineAudit {
 public:
  // `wake` is called from another thread when a fetch has ended.
  EngineAudit(const CacheTerms& terms, const KvLayout& layout, ModelRunner* model, PrefixPool* pool,
              EngineCounters* counters, std::function<void()> wake);

  // Offers a restored prefix for an audit. The fraction audit_rate of the offered prefixes is
  // audited later.
  void Offer(const Sequence& sequence);
  bool HasWork() const;
  // Runs one step of the running audit, or starts the next. REQUIRES: HasWork().
  void Step(PrefixCache* cache);
  bool is_under_way() const { return audit_ != nullptr; }
  // Aborts the running audit. REQUIRES: is_under_way().
  void Skip();
  // Waits for the calls to the cache to end. No other method may be called after Stop.
  void Stop() { calls_.Stop(); }

 private:
  struct Audit {
    PrefixRequest prefix;  // token ids and cuts up to the restored boundary
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
