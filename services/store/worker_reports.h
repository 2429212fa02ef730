// WorkerReports: what workers say they served since this store's start, all of them together.
//
// A hint for people: a worker that says too much spoils these figures and nothing else. Thread
// safety: all methods from any thread.
#ifndef HEARTH_SERVICES_STORE_WORKER_REPORTS_H_
#define HEARTH_SERVICES_STORE_WORKER_REPORTS_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/cache_store.pb.h"

namespace hearth {

class WorkerReports {
 public:
  // The most of anything in one report: sums stay far below 2^64.
  static constexpr uint64_t kMaxOfOne = uint64_t{1} << 40;
  static constexpr size_t kRecent = 1024;

  struct Sums {
    uint64_t requests = 0, prompt_tokens = 0;
    uint64_t cached_tokens = 0;  // of the prompts' tokens: restored, from anywhere
    uint64_t own_tokens = 0;     // of these: from the worker's own memory
  };

  // Of several with one id, as a worker sends that had no answer, the first is counted; as long as
  // kRecent others have not come since. kInvalidArgument names the field.
  absl::Status Add(const v1::ReportRequest& report, const std::string& id)
      ABSL_LOCKS_EXCLUDED(mutex_);
  Sums Read() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable absl::Mutex mutex_;
  Sums sums_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> recent_ ABSL_GUARDED_BY(mutex_);  // ids of reports, the last at the end
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_WORKER_REPORTS_H_
