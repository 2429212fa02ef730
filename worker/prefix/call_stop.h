// CallStop: ends blocking calls from another thread when nobody waits for them any more.
//
// Thread safety: all methods from any thread. Ownership: shared by those who stop the calls and
// those who make them.
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
  // Ends the calls under way, and each that begins later at once.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (std::exchange(stopped_, true)) return;
    for (const Call* call : calls_) call->end_();
  }
  bool stopped() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return stopped_;
  }

  // A call, as long as it lives: `end` is called once if it is to end, and never after. It must
  // neither block nor call back.
  class Call {
   public:
    // `stop` may be null: nobody ends it.
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
