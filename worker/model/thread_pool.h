// ThreadPool: a fixed set of threads that run one sequence of loops at a time, with the caller
// among them.
//
// Tasks are handed out one by one, so a core that is slowed by another process takes fewer of
// them, and nobody waits for a thread that has no task in hand: neither the next loop of a sequence
// nor the return to the caller. Which thread runs a task is therefore chance: a task's result must
// not depend on it. A thread that has nothing to do looks for work for some 100 us, as loops follow
// each other within microseconds, and then sleeps.
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

  // Calls task(i, thread) for each i in [0, tasks), thread in [0, threads()); returns when all are
  // done. Tasks must not throw.
  void Run(int64_t tasks, Task task);
  // As Run for each phase in order, but the thread that ends a phase begins the next: the caller's
  // thread need not be on a core for it. Tasks of a phase see the results of the one before.
  void RunPhases(absl::Span<const Phase> phases);

  // The machine's physical cores that this process may use, at least 1.
  static int PhysicalCores();

 private:
  // A phase as the threads see it. Tasks are numbered through all sequences ever run, so that a
  // number is never used twice: taking one succeeds only in the sequence that it is of.
  struct PhaseSlot {
    std::atomic<int64_t> begin{0}, end{0};
    std::atomic<const Task*> task{nullptr};
  };
  static constexpr int kPhaseSlots = 256;  // longer sequences are run in pieces

  void Work(int thread);
  void RunPiece(absl::Span<const Phase> phases);
  void TakeOrWait(int64_t number, int thread, int* hint);
  int FindPhase(int64_t number, int* hint) const;
  template <typename Condition>
  void WaitUntil(const Condition& holds);
  void WakeSleepers();

  std::vector<std::thread> workers_;
  std::mutex run_mutex_;  // one sequence at a time

  // Written by who runs a sequence, while no task can be taken; then end_ is raised.
  std::array<PhaseSlot, kPhaseSlots> slots_;
  std::atomic<int> slot_count_{0};
  std::atomic<int64_t> end_{0};   // numbers below are there to be taken
  std::atomic<int64_t> next_{0};  // the next one
  std::atomic<int64_t> done_{0};  // how many are done; phases are done in order
  std::atomic<bool> stop_{false};

  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleeping_{0};
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_THREAD_POOL_H_
