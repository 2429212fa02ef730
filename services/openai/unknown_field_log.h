// UnknownFieldLog: decides which unknown fields of requests are logged: each name once.
//
// Names come from callers, so their number is bounded, and so is the rate of new ones.
// Thread safety: all methods from any thread.
#ifndef HEARTH_SERVICES_OPENAI_UNKNOWN_FIELD_LOG_H_
#define HEARTH_SERVICES_OPENAI_UNKNOWN_FIELD_LOG_H_

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "services/openai/openai_fields.h"
#include "services/serving/logging.h"

namespace hearth {

class UnknownFieldLog {
 public:
  static constexpr size_t kMaxNames = 256;

  // The names to log now: those that were not returned before. A name that the rate does not allow
  // is returned by a later call.
  std::vector<std::string> TakeNew(const UnknownFields& fields, absl::Time now);

 private:
  LogRate rate_;
  absl::Mutex mutex_;
  std::set<std::string> seen_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_UNKNOWN_FIELD_LOG_H_
