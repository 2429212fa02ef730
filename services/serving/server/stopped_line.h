// StoppedLine: the log's last line, written when a server has given back all that it had.
//
// The first local of a server's main, so that its destructor is the last.
// Thread safety: none.
#ifndef HEARTH_SERVICES_SERVING_SERVER_STOPPED_LINE_H_
#define HEARTH_SERVICES_SERVING_SERVER_STOPPED_LINE_H_

#include <optional>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/serving/logging.h"

namespace hearth {

class StoppedLine {
 public:
  StoppedLine() = default;
  ~StoppedLine() {
    if (!drained_) return;
    Log(cut_off_calls_ > 0 ? LogLevel::kWarning : LogLevel::kInfo, "stopped",
        {{"drain_ms", absl::ToInt64Milliseconds(*drained_)},
         {"cut_off_calls", cut_off_calls_},
         {"close_ms", absl::ToInt64Milliseconds(absl::Now() - closing_since_)}});
  }
  StoppedLine(const StoppedLine&) = delete;
  StoppedLine& operator=(const StoppedLine&) = delete;

  // The last call has ended; what is left is to close the store, or the model.
  void SetDrained(absl::Duration took, int cut_off_calls) {
    drained_ = took;
    cut_off_calls_ = cut_off_calls;
    closing_since_ = absl::Now();
  }

 private:
  std::optional<absl::Duration> drained_;
  int cut_off_calls_ = 0;
  absl::Time closing_since_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_SERVER_STOPPED_LINE_H_
