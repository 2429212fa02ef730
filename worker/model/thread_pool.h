// ThreadPool: a fixed set of threads that run one sequence of parallel loops at a time. The calling
// thread is one of the threads.
//
// Each thread takes one task at a time, so a core that another process slows down takes fewer
// tasks. A loop begins when all tasks of the previous loop have ended; it does not wait for threads
// without a task. Any thread may run any task, so the result of a task must not depend on its
// thread. An idle thread spins for about 100 us and then sleeps, because loops follow each other
// within microseconds.
//
// Thread safety: methods may be called from any thread; concurrent calls run one after the other.
// REQUIRES: no call from inside a task.
#ifndef HEARTH_WORKER_MODEL_THREAD_POOL_H_
#define HEARTH_WORKER_MODEL_THREAD_POOL_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace hearth {

class ThreadPool {
 public:
  using Task = absl::FunctionRef<void(int64_t task, int thread)>;
  // One parallel loop of a sequence.
  struct Phase {
    int64_t tasks;
    Task task;
  };

  // `threads`: number of threads, including the thread that calls Run. REQUIRES: threads >= 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(i, thread) for each i in [0, tasks), with thread in [0, threads()). Returns when all
  // calls have returned. Tasks must not throw.
  void Run(int64_t tasks, Task task);
  // Runs a sequence of loops, each like Run. A loop begins when the previous loop has ended; its
  // tasks read the results of the previous loop. The thread that ends a loop can begin the next
  // loop, even while the calling thread is not scheduled.
  void RunPhases(absl::Span<const Phase> phases);

  // Returns the number of physical cores that this process may use, at least 1.
  static int PhysicalCores();

 private:
  // A phase (loop) as the threads read it. Task numbers increase over all sequences and are never
  // reused, so a thread cannot take a task number of a sequence that has ended.
  struct PhaseSlot {
    std::atomic<int64_t> begin{0}, end{0};
    std::atomic<const Task*> task{nullptr};
  };
  // a longer sequence runs in several pieces of at most this many phases
  static constexpr int kPhaseSlots = 256;

  void Work(int thread);
  void RunPiece(absl::Span<const Phase> phases);
  void TakeOrWait(int64_t number, int thread, int* hint);
  int FindPhase(int64_t number, int* hint) const;
  template <typename Condition>
  void WaitUntil(const Condition& holds);
  void WakeSleepers();

  std::vector<std::thread> workers_;
  std::mutex run_mutex_;  // held during a call of RunPhases

  // Written by the calling thread while no task can be taken; tasks can be taken once it raises
  // end_.
  std::array<PhaseSlot, kPhaseSlots> slots_;
  std::atomic<int> slot_count_{0};
  std::atomic<int64_t> end_{0};   // tasks with numbers below this may be taken
  std::atomic<int64_t> next_{0};  // number of the next task to take
  std::atomic<int64_t> done_{0};  // number of tasks that have ended; phases end in order
  std::atomic<bool> stop_{false};

  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleeping_{0};
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_THREAD_POOL_H_
