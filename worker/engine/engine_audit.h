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
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "worker/engine/engine_counters.h"
#include "worker/engine/prefix_pool.h"
#include "worker/engine/request/engine_options.h"
#include "worker/engine/runner/model_runner.h"
#include "worker/engine/sequence.h"
#include "worker/engine/task_queue.h"

namespace hearth {

class EngineAudit {
 public:
  // `ring`: called from another thread when there is something to do.
  EngineAudit(const CacheTerms& terms, const KvLayout& layout, ModelRunner* model, PrefixPool* pool,
              EngineCounters* counters, std::function<void()> ring);

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
    uint32_t boundary() const { return static_cast<uint32_t>(prefix.token_ids.size()); }
  };
  absl::Status TryStep(PrefixCache* cache);
  absl::Status Fetch(PrefixCache* cache);
  absl::Status Finish(PrefixCache* cache);
  void Accuse(std::vector<ObjectId> wrong, PrefixCache* cache);
  void End();

  const CacheTerms& terms_;
  const KvLayout& layout_;
  ModelRunner* const model_;
  PrefixPool* const pool_;
  EngineCounters* const counters_;
  const std::function<void()> ring_;
  std::deque<PrefixRequest> waiting_;
  std::unique_ptr<Audit> audit_;  // under way
  double credit_ = 0;
  mutable absl::Mutex mu_;
  uint64_t number_ ABSL_GUARDED_BY(mu_) = 0;                  // of the one under way, or the next
  std::optional<FetchOutcome> fetched_ ABSL_GUARDED_BY(mu_);  // for that one
  TaskQueue calls_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ENGINE_AUDIT_H_
