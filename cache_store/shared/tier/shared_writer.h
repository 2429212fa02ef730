// SharedWriter: writes restore points of this store to the shared engine, and puts the end of what
// is used there off. Behind what asked for it: on a thread of its own, from a bounded queue. What
// somebody waits for has threads of its own, and a queue.
//
// Nothing is copied for the queue: the bytes are read from the store when their turn comes. What
// has left it by then is skipped.
//
// Thread safety: all methods from any thread. Ownership: borrows all but its thread.
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
#include "cache_store/shared/shared_lives.h"
#include "cache_store/shared/shared_object.h"
#include "cache_store/shared/tier/shared_core.h"

namespace hearth {

// What of a prompt is to be written, or was used.
struct SharedWork {
  Digest fingerprint{};
  KvLayout layout;
  std::string tenant;
  std::vector<uint32_t> token_ids, cuts;
  std::vector<uint32_t> boundaries;  // restore points of this store, ascending
};

class SharedWriter {
 public:
  // Prompts whose objects wait to be written: their token ids, not their keys and values.
  static constexpr uint64_t kMaxQueuedBytes = uint64_t{64} << 20;
  // Writes that somebody waits for: so many at a time, and so many more in turn.
  static constexpr int kWaitedFor = 4;
  static constexpr int kMaxWaiting = 32;

  // `executor`: null for a thread. `waiting`: of writes that are waited for; null for threads.
  SharedWriter(SharedCore* core, std::unique_ptr<Executor> executor,
               std::unique_ptr<Executor> waiting);
  ~SharedWriter();

  // Writes now what the engine lacks of it, and puts the end of the rest off. The first error,
  // after which nothing more is written.
  absl::Status Write(const SharedWork& work);
  // The same on a thread of the writer's, which then calls `done`.
  void WriteThen(SharedWork work, std::function<void(absl::Status)> done);
  void WriteBehind(SharedWork work) { Schedule(std::move(work), true); }
  // Beside what is written behind. False: too much waits already.
  bool RunBeside(std::function<void()> job);
  // The last of the work's boundaries served somebody.
  void NoteUse(SharedWork work);
  bool WaitIdle(absl::Time deadline) {
    return executor_->WaitIdle(deadline) && waiting_->WaitIdle(deadline);
  }
  // A restore point was dropped, and its heads are about to be erased.
  void NoteDrop() { drops_.fetch_add(1); }

 private:
  class Batch;

  absl::StatusOr<SharedPrompt> PromptOf(const SharedWork& work, absl::Time deadline);
  absl::Status WritePoint(const SharedWork& work, const SharedPrompt& prompt, uint32_t boundary,
                          std::set<ObjectId>* seen);
  // `object`: its place in the plan.
  absl::Status WriteObject(const SharedPrompt& prompt, FetchSession* session, size_t object,
                           Batch* batch);
  void PutOff(const SharedWork& work);
  // The ends of these objects' values.
  void PutOffObjects(const SharedPrompt& prompt, absl::Span<const ObjectId> ids);
  void Schedule(SharedWork work, bool writes);
  absl::Duration LifeOf(const ObjectId& id, const KvLayout& layout) const;

  SharedCore* const core_;
  std::atomic<uint64_t> drops_{0};
  std::atomic<bool> stopping_{false};
  absl::Mutex mu_;
  SharedLives lives_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Executor> executor_, waiting_;  // last: their jobs use all else
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_WRITER_H_
