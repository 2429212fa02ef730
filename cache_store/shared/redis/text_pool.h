// TextPool: keeps the memory of long texts for those that come next.
//
// Values come one after another, on the loop's thread, and are done with on others: each would be
// memory new from the system, cleared page by page. Thread safety: all methods from any thread.
// Invariant: it keeps at most kKeptBytes.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_TEXT_POOL_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_TEXT_POOL_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace hearth {

class TextPool {
 public:
  // As much as may be under way on one connection.
  static constexpr size_t kKeptBytes = size_t{32} << 20;

  // Of that many bytes; which ones is not said.
  std::string Take(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Give(std::string text) ABSL_LOCKS_EXCLUDED(mutex_);
  size_t kept_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::string> texts_ ABSL_GUARDED_BY(mutex_);
  size_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_TEXT_POOL_H_
