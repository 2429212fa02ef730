#include "services/inference/cache_counters.h"

namespace hearth {

void CacheCounters::CountFetch(const std::string& outcome, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  ++counts_.fetches[outcome];
  counts_.bytes_fetched += bytes;
}

void CacheCounters::CountShared(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  counts_.bytes_shared += bytes;
}

void CacheCounters::CountFromDevice(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  counts_.bytes_from_device += bytes;
}

void CacheCounters::CountSharedFallback(const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  ++counts_.shared_fallbacks[reason];
}

void CacheCounters::CountPublish(const std::string& outcome, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  ++counts_.publishes[outcome];
  counts_.bytes_published += bytes;
}

void CacheCounters::CountLease(const std::string& outcome) {
  absl::MutexLock lock(&mutex_);
  ++counts_.leases[outcome];
}

CacheCounters::Snapshot CacheCounters::Read() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

const char* FetchName(const absl::StatusOr<FetchOutcome>& outcome, const LoadTrial& load) {
  const bool cut_off = load.report().decision == LoadDecision::kAbandoned;
  if (!outcome.ok()) return cut_off ? "abandoned" : FailureOutcome(outcome.status());
  if (outcome->usable_tokens > 0) return "hit";
  return outcome->declined_tokens > 0 ? "declined" : "miss";
}

const char* FailureOutcome(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return "unreachable";
    case absl::StatusCode::kDeadlineExceeded:
      return "deadline";
    case absl::StatusCode::kCancelled:
      return "cancelled";
    case absl::StatusCode::kDataLoss:
      return "corrupt";
    case absl::StatusCode::kFailedPrecondition:
      return "mismatch";
    case absl::StatusCode::kResourceExhausted:
      return "full";
    case absl::StatusCode::kAborted:
      return "nondeterminism";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return "refused";
    default:
      return "error";
  }
}

}  // namespace hearth
