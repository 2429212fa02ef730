#include "worker/engine/task_queue.h"

#include <cassert>
#include <utility>

namespace hearth {

TaskQueue::TaskQueue(size_t threads, size_t max_waiting) : max_waiting_(max_waiting) {
  assert(threads >= 1);
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

TaskQueue::~TaskQueue() { Stop(); }

bool TaskQueue::Submit(Task task) {
  assert(task != nullptr);
  absl::MutexLock lock(&mu_);
  if (stopped_ || waiting_.size() >= max_waiting_) return false;
  waiting_.push_back(std::move(task));
  return true;
}

bool TaskQueue::DropOldest() {
  Task task;
  {
    absl::MutexLock lock(&mu_);
    if (waiting_.empty()) return false;
    task = std::move(waiting_.front());
    waiting_.pop_front();
    ++busy_;
  }
  task(Fate::kDrop);
  task = nullptr;
  absl::MutexLock lock(&mu_);
  assert(busy_ > 0);
  --busy_;
  return true;
}

bool TaskQueue::WaitIdle(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  const auto is_idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return waiting_.empty() && busy_ == 0;
  };
  return mu_.AwaitWithDeadline(absl::Condition(&is_idle), deadline);
}

void TaskQueue::Stop() {
  std::deque<Task> dropped;
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    dropped.swap(waiting_);
  }
  for (Task& task : dropped) task(Fate::kDrop);
  for (std::thread& thread : threads_) {
    assert(thread.get_id() != std::this_thread::get_id());  // a task must not call Stop()
    thread.join();
  }
  threads_.clear();
}

void TaskQueue::Run() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopped_ || !waiting_.empty();
  };
  for (;;) {
    Task task;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      if (waiting_.empty()) return;
      task = std::move(waiting_.front());
      waiting_.pop_front();
      ++busy_;
    }
    task(Fate::kRun);
    task = nullptr;  // destroy the captured objects before the queue counts as idle
    absl::MutexLock lock(&mu_);
    assert(busy_ > 0);
    --busy_;
  }
}

}  // namespace hearth
