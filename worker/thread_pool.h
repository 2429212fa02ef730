// ThreadPool: a fixed set of threads that run one loop at a time, with the caller among them.
//
// Thread safety: Run may be called from any thread; concurrent calls run one after the other. Do
// not call Run from inside a task. Tasks are handed out one by one, so a core that is slowed by
// another process takes fewer of them. Which thread runs a task is therefore chance: a task's
// result must not depend on it.
#ifndef HEARTH_WORKER_THREAD_POOL_H_
#define HEARTH_WORKER_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace hearth {

class ThreadPool {
 public:
  // `threads` includes the caller of Run. REQUIRES: threads >= 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(i, thread) for each i in [0, tasks), thread in [0, threads()); returns when all are
  // done. Tasks must not throw.
  void Run(int64_t tasks, absl::FunctionRef<void(int64_t task, int thread)> task);

  // The machine's physical cores that this process may use, at least 1.
  static int PhysicalCores();

 private:
  void Work(int thread);
  void TakeTasks(int thread);

  std::vector<std::thread> workers_;
  std::mutex run_mutex_;  // one Run at a time

  // One loop, published by raising generation_.
  const absl::FunctionRef<void(int64_t, int)>* task_ = nullptr;
  int64_t tasks_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<int> busy_{0};  // workers that have not finished this loop
  std::atomic<uint64_t> generation_{0};
  std::atomic<bool> stop_{false};

  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleeping_{0};
};

}  // namespace hearth

#endif  // HEARTH_WORKER_THREAD_POOL_H_
