// StateLimit: limits the memory of the states that are being saved and loaded.
//
// Thread safety: all methods from any thread. Ownership: what it gives must not outlive it.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_STATE_LIMIT_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_STATE_LIMIT_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace hearth {

// Counted by a pool for the work on a state, which makes it a long one: StateLimit counts the
// bytes.
inline constexpr uint64_t kStateJobBytes = uint64_t{4} << 20;

class StateLimit {
 public:
  // Room for a state that fills the pool, twice: as a file, and as what is made of it.
  explicit StateLimit(uint64_t pool_bytes) : limit_bytes_(2 * std::max(pool_bytes, kLeastBytes)) {}

  // Of one state. Thread safety: one thread at a time.
  class Reservation {
   public:
    explicit Reservation(StateLimit* limit) : limit_(limit) {}
    ~Reservation() { Clear(); }
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

    // No less than it has. kResourceExhausted names the limit, and changes nothing.
    absl::Status GrowTo(uint64_t bytes) {
      absl::MutexLock lock(&limit_->mutex_);
      const uint64_t others = limit_->used_bytes_ - bytes_;
      if (bytes > limit_->limit_bytes_ - others) {
        return absl::ResourceExhaustedError(
            absl::StrCat("a state of ", bytes, " bytes: ", others, " of ", limit_->limit_bytes_,
                         " for states are in use (twice --pool-bytes)"));
      }
      limit_->used_bytes_ += bytes - bytes_;
      bytes_ = bytes;
      return absl::OkStatus();
    }

    void Clear() {
      absl::MutexLock lock(&limit_->mutex_);
      limit_->used_bytes_ -= std::exchange(bytes_, 0);
    }

   private:
    StateLimit* const limit_;
    uint64_t bytes_ = 0;
  };

 private:
  static constexpr uint64_t kLeastBytes = uint64_t{128} << 20;
  const uint64_t limit_bytes_;
  absl::Mutex mutex_;
  uint64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_STATE_LIMIT_H_
