// TaskQueue: a thread pool that runs tasks in order of arrival, with a bounded queue.
//
// Thread safety: all methods may be called from any thread, but a task must not call Stop or the
// destructor.
// Invariant: every accepted task is called exactly once: with kRun, or with kDrop if it was
// dropped, or if the queue was stopped before the task could run.
#ifndef HEARTH_WORKER_ENGINE_TASK_QUEUE_H_
#define HEARTH_WORKER_ENGINE_TASK_QUEUE_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace hearth {

class TaskQueue {
 public:
  enum class Fate { kRun, kDrop };
  using Task = std::function<void(Fate)>;

  TaskQueue(size_t threads, size_t max_waiting);
  ~TaskQueue();  // calls Stop()
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // Returns false, without calling the task, if the queue is full or stopped.
  bool Submit(Task task) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls the oldest waiting task with kDrop, on this thread. Returns false if no task waits.
  bool DropOldest() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until no task waits or runs. Returns false if `deadline` passed first.
  bool WaitIdle(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops waiting tasks, then joins the threads.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const size_t max_waiting_;
  absl::Mutex mu_;
  std::deque<Task> waiting_ ABSL_GUARDED_BY(mu_);
  size_t busy_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_TASK_QUEUE_H_
