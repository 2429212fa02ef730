#include "services/inference/cache_counters.h"

#include <utility>

namespace hearth {
namespace {

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

const char* FetchName(const absl::Status& status, const FetchOutcome& outcome) {
  if (outcome.load.decision == LoadDecision::kAbandoned) return "abandoned";
  if (!status.ok()) return FailureOutcome(status);
  if (outcome.usable_tokens > 0) return "hit";
  return outcome.declined_tokens > 0 ? "declined" : "miss";
}

}  // namespace

FetchOutcome CacheCounters::EndFetch(const absl::Status& status, FetchOutcome outcome,
                                     uint64_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    ++counts_.fetches[FetchName(status, outcome)];
    counts_.bytes_fetched += bytes;
  }
  if (status.ok()) return outcome;
  FetchOutcome failed;
  failed.declined_tokens = outcome.declined_tokens;
  failed.note = std::string(status.message());
  failed.load = outcome.load;
  failed.is_counted = outcome.is_counted;
  failed.counted_held = outcome.counted_held;
  if (failed.load.decision == LoadDecision::kLoad) failed.load.decision = LoadDecision::kMiss;
  return failed;
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

PublishOutcome CacheCounters::EndPublish(absl::StatusOr<PublishOutcome> outcome) {
  absl::MutexLock lock(&mutex_);
  ++counts_.publishes[!outcome.ok()                   ? FailureOutcome(outcome.status())
                      : outcome->published_tokens > 0 ? "stored"
                                                      : "nothing"];
  if (outcome.ok()) {
    counts_.bytes_published += outcome->bytes_sent;
    return *std::move(outcome);
  }
  PublishOutcome nothing;
  nothing.note = std::string(outcome.status().message());
  return nothing;
}

LeaseOutcome CacheCounters::EndLease(absl::StatusOr<LeaseOutcome> outcome, bool waited) {
  absl::MutexLock lock(&mutex_);
  ++counts_.leases[!outcome.ok()               ? FailureOutcome(outcome.status())
                   : outcome->lease != nullptr ? "compute"
                   : waited                    ? "waited"
                                               : "go"];
  return outcome.ok() ? *std::move(outcome) : LeaseOutcome();
}

CacheCounters::Snapshot CacheCounters::Read() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

}  // namespace hearth
