// CallStop: cancels the blocking calls of another thread when their results are no longer needed.
//
// Thread safety: all methods may be called from any thread. Ownership: shared by the threads that
// cancel the calls and the threads that make them.
#ifndef HEARTH_WORKER_PREFIX_CALL_STOP_H_
#define HEARTH_WORKER_PREFIX_CALL_STOP_H_

#include <cassert>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace hearth {

class CallStop {
 public:
  // Cancels running calls. A call that begins later is cancelled at once.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (std::exchange(stopped_, true)) return;
    for (const Call* call : calls_) call->end_();
  }
  bool stopped() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return stopped_;
  }

  // Registers a call from construction to destruction. `end` cancels the call. It is called at most
  // once, and never after the destructor. `end` must not block, and must not use this CallStop.
  class Call {
   public:
    // If `stop` is null, the call is never cancelled.
    Call(std::shared_ptr<CallStop> stop, std::function<void()> end)
        : stop_(std::move(stop)), end_(std::move(end)) {
      assert(end_ != nullptr);
      if (stop_ == nullptr) return;
      absl::MutexLock lock(&stop_->mu_);
      stop_->calls_.insert(this);
      if (stop_->stopped_) end_();
    }
    ~Call() {
      if (stop_ == nullptr) return;
      absl::MutexLock lock(&stop_->mu_);
      stop_->calls_.erase(this);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    friend class CallStop;
    const std::shared_ptr<CallStop> stop_;
    const std::function<void()> end_;
  };

 private:
  mutable absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::set<const Call*> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_WORKER_PREFIX_CALL_STOP_H_
