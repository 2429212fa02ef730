#include "cache_store/base/executor.h"

#include <cassert>

namespace hearth {

ThreadExecutor::ThreadExecutor(uint64_t max_bytes, int threads) : max_bytes_(max_bytes) {
  assert(threads >= 1);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

ThreadExecutor::~ThreadExecutor() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

bool ThreadExecutor::TrySchedule(uint64_t bytes, std::function<void()> job) {
  assert(job != nullptr);
  absl::MutexLock lock(&mu_);
  assert(bytes_ <= max_bytes_);
  if (stopping_ || jobs_.size() >= kMaxJobs || bytes > max_bytes_ - bytes_) return false;
  bytes_ += bytes;
  ++accepted_;
  jobs_.emplace_back(bytes, std::move(job));
  return true;
}

bool ThreadExecutor::WaitIdle(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  const uint64_t target = accepted_;
  auto done = [this, target]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return completed_ >= target; };
  return mu_.AwaitWithDeadline(absl::Condition(&done), deadline);
}

void ThreadExecutor::Run() {
  while (true) {
    std::pair<uint64_t, std::function<void()>> job;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &ThreadExecutor::HasWork));
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job.second();
    job.second = nullptr;  // frees the memory of the job before the job counts as completed
    absl::MutexLock lock(&mu_);
    assert(bytes_ >= job.first);
    bytes_ -= job.first;
    ++completed_;
  }
}

}  // namespace hearth
