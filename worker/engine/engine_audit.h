// EngineAudit: computes restored prefixes again while the engine is idle, to check the cache's
// bytes.
//
// An audit computes a prefix one step a round, so that a new request waits for one step only;
// fetches it from the cache once more; compares; and has wrong objects quarantined. Only tokens are
// kept from the restore to the audit: bytes would be as large as the pool.
//
// Thread safety: the engine's thread alone; calls to the cache run on a thread of its own.
// Ownership: all its arguments must outlive it.
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

// Audits: compare a cache's bytes with the bytes that this worker computes.
//
// A worker that publishes wrong bytes under right keys would be believed by all others: keys and
// digests only prove that the bytes are those that were published. Comparing is the only proof that
// they are right. Thread safety: pure functions; each cache is used by one thread at a time.

// In the portable class keys and values of one layer and object agree within rounding: the root of
// the sum of squared differences, over that of the squares, is at most this. Rounding at each of
// some 60 layers adds up to about a thousandth in float32 and a few hundredths in bfloat16; rows of
// another token differ by about 1.
inline constexpr double kFloat32Tolerance = 0.01;
inline constexpr double kHalfTolerance = 0.125;

// The objects of `boundary` whose rows, as far as a restore reads them, differ: in a bit in the
// exact class, by more than rounding in the portable one. Ascending.
// REQUIRES: both caches are of `layout` and have the length `boundary`.
std::vector<ObjectId> DifferingObjects(const KvLayout& layout, uint32_t boundary,
                                       const SequenceKv& computed, const SequenceKv& restored);

class EngineAudit {
 public:
  // `wake_engine`: called from another thread when there is something to do.
  EngineAudit(const CacheTerms& terms, const KvLayout& layout, ModelRunner* model, PrefixPool* pool,
              EngineCounters* counters, std::function<void()> wake_engine);

  // A prefix was restored; it may be audited later.
  void Offer(const Sequence& sequence);
  bool HasWork() const;
  // REQUIRES: HasWork().
  void Step(PrefixCache* cache);
  bool is_under_way() const { return audit_ != nullptr; }
  // Gives up the one that is under way. REQUIRES: there is one.
  void Skip();
  // Ends calls to the cache; the last of the methods.
  void Stop() { calls_.Stop(); }

 private:
  struct Audit {
    PrefixRequest prefix;  // up to the boundary that was restored
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
  const std::function<void()> wake_engine_;
  std::deque<PrefixRequest> waiting_;
  std::unique_ptr<Audit> audit_;  // under way
  double credit_ = 0;
  TaskQueue calls_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ENGINE_AUDIT_H_
