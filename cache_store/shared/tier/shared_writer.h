// SharedWriter: writes restore points of this store to the shared engine, and extends the expiry of
// used values there. Works in the background, on its own thread with a bounded queue. Writes for
// which a caller waits have their own threads and queue.
//
// The queue holds no copies of objects: a job reads the bytes from the store when it runs, and
// skips objects that were evicted by then.
//
// Thread safety: all methods from any thread. Ownership: borrows everything but its threads.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_WRITER_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_WRITER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/base/executor.h"
#include "cache_store/shared/shared_object.h"
#include "cache_store/shared/shared_ttl_policy.h"
#include "cache_store/shared/tier/shared_core.h"

namespace hearth {

// The restore points of a prompt to write, or that were used.
struct SharedWork {
  Digest fingerprint{};
  KvLayout layout;
  std::string tenant;
  std::vector<uint32_t> token_ids, cuts;
  std::vector<uint32_t> boundaries;  // restore points of this store, ascending
};

class SharedWriter {
 public:
  // Limit of queued work. Counts token ids and cuts only, as keys and values are not queued.
  static constexpr uint64_t kMaxQueuedBytes = uint64_t{64} << 20;
  // Writes for which a caller waits: threads, and further writes in the queue.
  static constexpr int kWaitingThreads = 4;
  static constexpr int kMaxWaiting = 32;

  // `executor`: null for one thread. `waiting`: runs the writes for which callers wait; null for
  // kWaitingThreads threads.
  SharedWriter(SharedCore* core, std::unique_ptr<Executor> executor,
               std::unique_ptr<Executor> waiting);
  ~SharedWriter();

  // Writes the objects that the engine lacks, and extends the expiry of the others. Stops at the
  // first error and returns it.
  absl::Status Write(const SharedWork& work);
  // As Write, on another thread, which then calls `done`.
  void WriteThen(SharedWork work, std::function<void(absl::Status)> done);
  void WriteBehind(SharedWork work) { Schedule(std::move(work), true); }
  // Runs `job` on a thread for waiting callers. Returns false if the queue is full.
  bool RunInBackground(std::function<void()> job);
  // Call after the last of the work's boundaries was used by a fetch.
  void NoteUse(SharedWork work);
  bool WaitIdle(absl::Time deadline) {
    return executor_->WaitIdle(deadline) && waiting_->WaitIdle(deadline);
  }
  // Call after a restore point was dropped, before its heads are erased.
  void NoteDrop() { drops_.fetch_add(1); }

 private:
  class Batch;

  absl::StatusOr<SharedPrompt> PromptOf(const SharedWork& work, absl::Time deadline);
  absl::Status WritePoint(const SharedWork& work, const SharedPrompt& prompt, uint32_t boundary,
                          std::set<ObjectId>* seen);
  // `object`: index in the session's plan.
  absl::Status WriteObject(const SharedPrompt& prompt, FetchSession* session, size_t object,
                           Batch* batch);
  void ExtendExpiry(const SharedWork& work);
  // Extends the expiry of the values of these objects.
  void ExtendObjects(const SharedPrompt& prompt, absl::Span<const ObjectId> ids);
  void Schedule(SharedWork work, bool writes);
  absl::Duration TtlOf(const ObjectId& id, const KvLayout& layout) const;

  SharedCore* const core_;
  std::atomic<uint64_t> drops_{0};
  std::atomic<bool> stopping_{false};
  absl::Mutex mu_;
  SharedTtlPolicy ttl_policy_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Executor> executor_, waiting_;  // last: their jobs use the other members
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_WRITER_H_
