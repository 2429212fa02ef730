// StagedBytes: counts the memory of publishes that are still being received.
//
// There is one limit for all tenants together, and one limit for each tenant, its quota. Memory is
// counted before it is allocated, and until it is freed or counted elsewhere. Thread safety: all
// methods from any thread. Invariant: the counts never exceed a limit.
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

  // Counts `bytes` for the tenant. kResourceExhausted names the limit that would be exceeded.
  // `most_of_tenant`: the tenant's limit; 0: none.
  absl::Status Reserve(const std::string& tenant, uint64_t bytes, uint64_t most_of_tenant);
  void Release(const std::string& tenant, uint64_t bytes);
  uint64_t bytes() const;
  // Returns the highest value that bytes() has had.
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
