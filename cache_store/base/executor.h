// Executor: runs background jobs, such as writes to disk after the acknowledgement, compaction, and
// reads.
//
// The queue has two limits: the number of jobs, and the bytes of memory that queued jobs keep alive
// (each job states its bytes). If the queue is full, a job is refused; the caller counts the
// refusal and continues without the job. Thread safety: all methods from any thread.
#ifndef HEARTH_CACHE_STORE_BASE_EXECUTOR_H_
#define HEARTH_CACHE_STORE_BASE_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace hearth {

class Executor {
 public:
  virtual ~Executor() = default;
  // Queues `job`. Returns false, and does not run the job, if the queue is full or stopping.
  virtual bool TrySchedule(uint64_t bytes, std::function<void()> job) = 0;
  // Waits until all jobs accepted before this call have run. Returns false if `deadline` passes
  // first.
  virtual bool WaitIdle(absl::Time deadline) = 0;
};

// Starts jobs in the order of TrySchedule() calls; with one thread, a job ends before the next job
// begins. The destructor runs all accepted jobs.
class ThreadExecutor : public Executor {
 public:
  // Limit of queued jobs: about 200 bytes each, together below 1 MiB.
  static constexpr size_t kMaxJobs = 4096;

  explicit ThreadExecutor(uint64_t max_bytes, int threads = 1);
  ~ThreadExecutor() override;
  bool TrySchedule(uint64_t bytes, std::function<void()> job) override;
  bool WaitIdle(absl::Time deadline) override;

 private:
  void Run();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !jobs_.empty(); }

  const uint64_t max_bytes_;
  absl::Mutex mu_;
  std::deque<std::pair<uint64_t, std::function<void()>>> jobs_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;      // bytes of waiting and running jobs
  uint64_t accepted_ ABSL_GUARDED_BY(mu_) = 0;   // number of jobs accepted so far
  uint64_t completed_ ABSL_GUARDED_BY(mu_) = 0;  // number of jobs completed so far
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_EXECUTOR_H_
