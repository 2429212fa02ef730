// StagedBytes: counts the memory of publishes that are being received, before it is allocated.
//
// One limit for all tenants together, and each tenant's quota: more bytes than the quota could
// never be stored. Thread safety: all methods from any thread. Invariants: (1) the counts never
// exceed a limit; (2) memory is counted from before its allocation until it is freed or counted
// elsewhere.
#ifndef HEARTH_CACHE_STORE_BASE_STAGED_BYTES_H_
#define HEARTH_CACHE_STORE_BASE_STAGED_BYTES_H_

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace hearth {

class StagedBytes {
 public:
  explicit StagedBytes(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // kResourceExhausted names the limit. `most_of_tenant` is the tenant's limit; 0: none.
  absl::Status Reserve(const std::string& tenant, uint64_t bytes, uint64_t most_of_tenant);
  void Release(const std::string& tenant, uint64_t bytes);
  uint64_t bytes() const;
  // Returns the maximum of bytes() so far.
  uint64_t most_bytes() const;

 private:
  const uint64_t limit_bytes_;
  mutable absl::Mutex mutex_;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t most_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, uint64_t> of_tenant_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_STAGED_BYTES_H_
