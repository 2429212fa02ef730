// An executor that runs background jobs only when the test asks for it, on the test's thread.
// Thread safe.
#ifndef HEARTH_TESTS_SUPPORT_MANUAL_EXECUTOR_H_
#define HEARTH_TESTS_SUPPORT_MANUAL_EXECUTOR_H_

#include <deque>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "cache_store/base/executor.h"

namespace hearth {

class ManualExecutor : public Executor {
 public:
  bool TrySchedule(uint64_t, std::function<void()> job) override {
    absl::MutexLock lock(&mu_);
    if (full_) return false;
    jobs_.push_back(std::move(job));
    return true;
  }
  bool WaitIdle(absl::Time) override {
    RunAll();
    return true;
  }
  void RunAll() {
    while (true) {
      std::function<void()> job;
      {
        absl::MutexLock lock(&mu_);
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job();
    }
  }
  void SetFull(bool full) {
    absl::MutexLock lock(&mu_);
    full_ = full;
  }

 private:
  absl::Mutex mu_;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mu_);
  bool full_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_MANUAL_EXECUTOR_H_
