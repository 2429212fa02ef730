// StreamLimit: limits how many streams of one kind are open at a time, all together and for each
// tenant that calls for itself; the last place of all is for a tenant that has none. So neither one
// tenant nor all others keep one out.
//
// Thread safety: all methods from any thread. Ownership: places outlive neither it nor their call.
#ifndef HEARTH_SERVICES_SERVING_CALLS_STREAM_LIMIT_H_
#define HEARTH_SERVICES_SERVING_CALLS_STREAM_LIMIT_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "services/serving/door/identity.h"

namespace hearth {

// kResourceExhausted: a tenant has as many streams of `kind` as it may; all callers together have.
absl::Status TenantIsAtLimit(const std::string& kind, int limit, const std::string& tenant);
absl::Status AllAreAtLimit(const std::string& kind, int limit);

class StreamLimit {
 public:
  // `kind` names the streams in errors. 0: no limit. Workers and administrators, and everybody
  // where no identities are asked for, are limited by `all` only.
  StreamLimit(std::string kind, int all, int each_tenant)
      : kind_(std::move(kind)), all_(all), each_tenant_(each_tenant) {}
  ~StreamLimit();
  StreamLimit(const StreamLimit&) = delete;
  StreamLimit& operator=(const StreamLimit&) = delete;

  // A place, until its last copy is destroyed; it counts as `weight` places. kResourceExhausted
  // names the limit.
  absl::StatusOr<std::shared_ptr<void>> Enter(const Identity& caller, int weight = 1);

 private:
  void Release(const std::string& tenant, int weight);

  const std::string kind_;
  const int all_, each_tenant_;
  absl::Mutex mutex_;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, int> open_of_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_STREAM_LIMIT_H_
