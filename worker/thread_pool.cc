#include "worker/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cassert>
#include <fstream>
#include <set>
#include <string>
#include <utility>

namespace hearth {
namespace {

// A layer's loops follow each other within microseconds; a sleeping thread takes tens of them to
// wake. 4,000 pauses are about 40 us on current cores: long enough between two loops, short enough
// not to burn a core between two requests.
constexpr int kSpinsBeforeSleep = 4000;
// A waiting caller that spins while the last worker is off its core would keep it off.
constexpr int kSpinsBeforeYield = 200;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  assert(threads >= 1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { Work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(sleep_mutex_);
    stop_ = true;
    ++generation_;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::TakeTasks(int thread) {
  for (;;) {
    const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    (*task_)(task, thread);
  }
}

void ThreadPool::Work(int thread) {
  uint64_t seen = 0;
  for (;;) {
    for (int i = 0; i < kSpinsBeforeSleep && generation_.load() == seen; ++i) Pause();
    if (generation_.load() == seen) {
      std::unique_lock<std::mutex> lock(sleep_mutex_);
      ++sleeping_;
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      --sleeping_;
    }
    ++seen;
    if (stop_) return;
    TakeTasks(thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::Run(int64_t tasks, absl::FunctionRef<void(int64_t, int)> task) {
  if (tasks <= 0) return;
  std::lock_guard<std::mutex> run_lock(run_mutex_);
  if (workers_.empty() || tasks == 1) {
    for (int64_t i = 0; i < tasks; ++i) task(i, 0);
    return;
  }
  task_ = &task;
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  ++generation_;
  if (sleeping_.load() > 0) {
    // Taking the lock orders this wake-up after a worker's check and before its wait.
    { std::lock_guard<std::mutex> lock(sleep_mutex_); }
    wake_.notify_all();
  }
  TakeTasks(0);
  for (int spins = 0; busy_.load(std::memory_order_acquire) > 0; ++spins) {
    if (spins < kSpinsBeforeYield) {
      Pause();
    } else {
      sched_yield();
    }
  }
  task_ = nullptr;
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
