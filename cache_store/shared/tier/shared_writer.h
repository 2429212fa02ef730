// SharedWriter: writes this store's restore points to the shared engine, and extends the expiry of
// values that were used. Works in the background, on its own thread with a limited queue. Writes
// for which a caller waits have their own threads and queue.
//
// The queue has no copies of objects: a job reads the bytes from the store when it runs, and skips
// objects that were evicted since. Thread safety: all methods from any thread. Ownership: borrows
// everything except its threads.
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

// Restore points of one prompt, which will be written or were used.
struct SharedWork {
  Digest fingerprint{};
  KvLayout layout;
  std::string tenant;
  std::vector<uint32_t> token_ids, cuts;
  std::vector<uint32_t> boundaries;  // boundaries of the restore points, ascending
};

class SharedWriter {
 public:
  // Limit of the queue's memory. Only token ids and cuts count, because keys and values are not
  // queued.
  static constexpr uint64_t kMaxQueuedBytes = uint64_t{64} << 20;
  // For writes for which a caller waits: number of threads, and limit of writes in the queue.
  static constexpr int kWaitingThreads = 4;
  static constexpr int kMaxWaiting = 32;

  // `executor`: runs background writes; null: one thread. `waiting`: runs writes for which callers
  // wait; null: kWaitingThreads threads.
  SharedWriter(SharedCore* core, std::unique_ptr<Executor> executor,
               std::unique_ptr<Executor> waiting);
  ~SharedWriter();

  // Writes the objects that the engine does not have, and extends the expiry of those that it has.
  // Stops at the first error and returns it.
  absl::Status Write(const SharedWork& work);
  // Calls Write() on another thread, and then `done` with its result.
  void WriteThen(SharedWork work, std::function<void(absl::Status)> done);
  void WriteBehind(SharedWork work) { Schedule(std::move(work), true); }
  // Runs `job` on one of the threads for waiting callers. Returns false if their queue is full.
  bool RunInBackground(std::function<void()> job);
  // Extends the expiry of values in the background. Call after a fetch used the last boundary of
  // `work`.
  void NoteUse(SharedWork work);
  bool WaitIdle(absl::Time deadline) {
    return executor_->WaitIdle(deadline) && waiting_->WaitIdle(deadline);
  }
  // Tells running writes that a restore point was dropped. Call before its heads are erased.
  void NoteDrop() { drops_.fetch_add(1); }

 private:
  class Batch;

  absl::StatusOr<SharedPrompt> PromptOf(const SharedWork& work, absl::Time deadline);
  absl::Status WritePoint(const SharedWork& work, const SharedPrompt& prompt, uint32_t boundary,
                          std::set<ObjectId>* seen);
  // Writes one object. `object`: its index in the session's plan.
  absl::Status WriteObject(const SharedPrompt& prompt, FetchSession* session, size_t object,
                           Batch* batch);
  void ExtendExpiry(const SharedWork& work);
  // Extends the expiry of all values of these objects.
  void ExtendObjects(const SharedPrompt& prompt, absl::Span<const ObjectId> ids);
  void Schedule(SharedWork work, bool writes);
  absl::Duration TtlOf(const ObjectId& id, const KvLayout& layout) const;

  SharedCore* const core_;
  std::atomic<uint64_t> drops_{0};
  std::atomic<bool> stopping_{false};
  absl::Mutex mu_;
  SharedTtlPolicy ttl_policy_ ABSL_GUARDED_BY(mu_);
  // the last members, because their jobs use the other members
  std::unique_ptr<Executor> executor_, waiting_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_WRITER_H_
