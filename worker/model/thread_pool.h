// ThreadPool: a fixed set of threads that run one sequence of loops at a time; the caller's thread
// is one of them.
//
// Tasks are handed out one by one, so a core slowed down by another process takes fewer tasks.
// Neither the next loop nor the return to the caller waits for a thread without a task. Any thread
// may run any task, so a task's result must not depend on its thread. An idle thread spins for
// about 100 us, because loops follow one another within microseconds, and then sleeps.
//
// Thread safety: any thread may call; concurrent calls run one after the other. Do not call from
// inside a task.
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
  // One loop of a sequence.
  struct Phase {
    int64_t tasks;
    Task task;
  };

  // `threads` includes the caller of Run. REQUIRES: threads >= 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(i, thread) for each i in [0, tasks), with thread in [0, threads()). Returns when all
  // calls have returned. Tasks must not throw.
  void Run(int64_t tasks, Task task);
  // As Run for each phase in order. The thread that ends a phase begins the next one, even if the
  // caller's thread is not running. Tasks see the results of the previous phase.
  void RunPhases(absl::Span<const Phase> phases);

  // Returns the physical cores that this process may use, at least 1.
  static int PhysicalCores();

 private:
  // A phase as the threads see it. Task numbers increase across all sequences and are never reused:
  // taking a number succeeds only within its own sequence.
  struct PhaseSlot {
    std::atomic<int64_t> begin{0}, end{0};
    std::atomic<const Task*> task{nullptr};
  };
  static constexpr int kPhaseSlots = 256;  // longer sequences run in several pieces

  void Work(int thread);
  void RunPiece(absl::Span<const Phase> phases);
  void TakeOrWait(int64_t number, int thread, int* hint);
  int FindPhase(int64_t number, int* hint) const;
  template <typename Condition>
  void WaitUntil(const Condition& holds);
  void WakeSleepers();

  std::vector<std::thread> workers_;
  std::mutex run_mutex_;  // held while a sequence runs

  // Written by the thread that runs a sequence, while no task can be taken; then it raises end_.
  std::array<PhaseSlot, kPhaseSlots> slots_;
  std::atomic<int> slot_count_{0};
  std::atomic<int64_t> end_{0};   // tasks below this number may be taken
  std::atomic<int64_t> next_{0};  // the next task to take
  std::atomic<int64_t> done_{0};  // tasks done; phases end in order
  std::atomic<bool> stop_{false};

  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleeping_{0};
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_THREAD_POOL_H_
