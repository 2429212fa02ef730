// LogRate: limits how often one kind of line is logged, so that a caller cannot fill the disk.
//
// Thread safety: all methods from any thread.
#ifndef HEARTH_SERVICES_SERVING_LOG_RATE_H_
#define HEARTH_SERVICES_SERVING_LOG_RATE_H_

#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "services/serving/logging.h"

namespace hearth {

class LogRate {
 public:
  // Allows `at_once` lines, and one more each `every`.
  explicit LogRate(absl::Duration every = absl::Seconds(10), int at_once = 5)
      : every_(every), at_once_(at_once) {
    assert(every > absl::ZeroDuration() && at_once >= 1);
  }

  // None: do not log now. Otherwise the number of lines left out since the last one.
  std::optional<uint64_t> Take(absl::Time now);

 private:
  const absl::Duration every_;
  const int at_once_;
  absl::Mutex mutex_;
  absl::Time full_ ABSL_GUARDED_BY(mutex_) =
      absl::InfinitePast();  // when `at_once` lines fit again
  uint64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Logs when the rate allows it, with `left_out`, the number of lines that were not logged. False:
// it did not.
bool LogSometimes(LogRate* rate, LogLevel level, absl::string_view event,
                  std::initializer_list<LogField> fields);
bool LogFieldsSometimes(LogRate* rate, LogLevel level, absl::string_view event,
                        std::vector<LogField> fields);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_LOG_RATE_H_
