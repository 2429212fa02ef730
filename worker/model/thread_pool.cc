#include "worker/model/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <fstream>
#include <set>
#include <string>

namespace hearth {
namespace {

// Time that a thread spins before it sleeps. Waking a sleeping thread takes tens of microseconds. A
// longer spin could occupy the core that another thread of the pool needs.
constexpr std::chrono::microseconds kLookFor{100};
constexpr int kPausesBetweenClocks = 32;

void Pause() { __builtin_ia32_pause(); }

}  // namespace

ThreadPool::ThreadPool(int threads) {
  assert(threads >= 1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { Work(i); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  WakeSleepers();
  for (std::thread& worker : workers_) worker.join();
}

// No wake-up is lost: a waiting thread increments sleeping_ before its last check of the condition,
// and a thread that makes the condition true does so before it reads sleeping_. Therefore the
// waiting thread sees the condition, or the other thread sees the sleeper.
template <typename Condition>
void ThreadPool::WaitUntil(const Condition& holds) {
  const auto give_up = std::chrono::steady_clock::now() + kLookFor;
  do {
    for (int i = 0; i < kPausesBetweenClocks; ++i) {
      if (holds()) return;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < give_up);
  std::unique_lock<std::mutex> lock(sleep_mutex_);
  ++sleeping_;
  wake_.wait(lock, holds);
  --sleeping_;
}

void ThreadPool::WakeSleepers() {
  if (sleeping_.load() == 0) return;
  // If a thread is between its last check and its wait, the lock delays notify_all until that
  // thread waits.
  { std::lock_guard<std::mutex> lock(sleep_mutex_); }
  wake_.notify_all();
}

// Returns the index in slots_ of the phase to which task `number` belongs. Returns -1 if no slot
// contains the number, because the slots belong to a later sequence or are changing.
int ThreadPool::FindPhase(int64_t number, int* hint) const {
  const int count = slot_count_.load(std::memory_order_relaxed);
  for (int i = 0; i < count; ++i) {
    const int phase = (*hint + i) % count;
    const PhaseSlot& slot = slots_[static_cast<size_t>(phase)];
    if (slot.begin.load(std::memory_order_relaxed) <= number &&
        number < slot.end.load(std::memory_order_relaxed)) {
      *hint = phase;
      return phase;
    }
  }
  return -1;
}

// Runs task `number` if its phase has begun; otherwise waits until the phase begins. If the
// compare-exchange succeeds, all slot values read before it belong to the task's sequence, because
// that sequence cannot end before this task has run.
void ThreadPool::TakeOrWait(int64_t number, int thread, int* hint) {
  const int phase = FindPhase(number, hint);
  if (phase < 0) return;
  const PhaseSlot& slot = slots_[static_cast<size_t>(phase)];
  const int64_t begin = slot.begin.load(std::memory_order_relaxed);
  const int64_t end = slot.end.load(std::memory_order_relaxed);
  if (done_.load() < begin) return WaitUntil([&] { return done_.load() >= begin; });
  if (!next_.compare_exchange_strong(number, number + 1)) return;
  (*slot.task.load(std::memory_order_relaxed))(number - begin, thread);
  if (done_.fetch_add(1) + 1 == end) WakeSleepers();
}

void ThreadPool::Work(int thread) {
  int hint = 0;
  while (!stop_) {
    const int64_t number = next_.load();
    if (number < end_.load()) {
      TakeOrWait(number, thread, &hint);
    } else {
      WaitUntil([&] { return stop_ || end_.load() > number; });
    }
  }
}

void ThreadPool::RunPiece(absl::Span<const Phase> phases) {
  assert(phases.size() <= kPhaseSlots);
  int64_t end = end_.load();
  int count = 0;
  for (const Phase& phase : phases) {
    if (phase.tasks <= 0) continue;
    PhaseSlot& slot = slots_[static_cast<size_t>(count++)];
    slot.begin.store(end, std::memory_order_relaxed);
    slot.end.store(end + phase.tasks, std::memory_order_relaxed);
    slot.task.store(&phase.task, std::memory_order_relaxed);
    end += phase.tasks;
  }
  assert(done_.load() == end_.load() && next_.load() == end_.load());  // no earlier task is left
  slot_count_.store(count, std::memory_order_relaxed);
  end_.store(end);
  WakeSleepers();
  for (int hint = 0; done_.load() < end;) {
    const int64_t number = next_.load();
    if (number < end) {
      TakeOrWait(number, 0, &hint);
    } else {
      WaitUntil([&] { return done_.load() >= end; });
    }
  }
}

void ThreadPool::RunPhases(absl::Span<const Phase> phases) {
  std::lock_guard<std::mutex> run_lock(run_mutex_);
  const bool alone =
      workers_.empty() || std::all_of(phases.begin(), phases.end(),
                                      [](const Phase& phase) { return phase.tasks <= 1; });
  if (alone) {
    for (const Phase& phase : phases) {
      for (int64_t i = 0; i < phase.tasks; ++i) phase.task(i, 0);
    }
    return;
  }
  for (size_t at = 0; at < phases.size(); at += kPhaseSlots) {
    RunPiece(phases.subspan(at, kPhaseSlots));
  }
}

void ThreadPool::Run(int64_t tasks, Task task) {
  const Phase phase{tasks, task};
  RunPhases({&phase, 1});
}

int ThreadPool::PhysicalCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::ifstream in("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                     "/topology/thread_siblings_list");
    std::string siblings;
    if (!std::getline(in, siblings)) siblings = std::to_string(cpu);
    cores.insert(siblings);
  }
  return std::max<int>(1, static_cast<int>(cores.size()));
}

}  // namespace hearth
