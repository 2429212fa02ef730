// CallStop: ends blocking calls from another thread when nobody waits for them any more.
//
// Thread safety: all methods from any thread. Ownership: shared by those who stop the calls and
// those who make them.
#ifndef HEARTH_WORKER_PREFIX_CALL_STOP_H_
#define HEARTH_WORKER_PREFIX_CALL_STOP_H_

#include <cassert>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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
    for (const auto& [number, end] : ends_) end();
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
    Call(std::shared_ptr<CallStop> stop, std::function<void()> end) : stop_(std::move(stop)) {
      assert(end != nullptr);
      if (stop_ == nullptr) return;
      absl::MutexLock lock(&stop_->mu_);
      if (stop_->stopped_) {
        end();
        return;
      }
      number_ = ++stop_->last_number_;
      stop_->ends_[number_] = std::move(end);
    }
    ~Call() {
      if (stop_ == nullptr) return;
      absl::MutexLock lock(&stop_->mu_);
      stop_->ends_.erase(number_);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    const std::shared_ptr<CallStop> stop_;
    uint64_t number_ = 0;
  };

 private:
  mutable absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, std::function<void()>> ends_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_WORKER_PREFIX_CALL_STOP_H_
