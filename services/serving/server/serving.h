// The part of main that hearth-store and hearth-worker share: listens, reports the address, waits
// for a stop signal, drains. On SIGHUP the files of `access` are read again.
//
// Thread safety: call from main. Serve blocks main until the server stops.
#ifndef HEARTH_SERVICES_SERVING_SERVER_SERVING_H_
#define HEARTH_SERVICES_SERVING_SERVER_SERVING_H_

#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/serving/access/server_access.h"
#include "services/serving/calls/admission.h"
#include "services/serving/flags.h"
#include "services/serving/logging.h"
#include "services/serving/metrics.h"
#include "services/serving/server/server_runner.h"

namespace hearth {

// StoppedLine: writes the last line of the log, when a server has released everything.
//
// Must be the first local variable of a server's main, so that its destructor runs last.
// Thread safety: none.
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

  // Call when no call runs any more, before the store or the model is closed.
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

// Sets up stop signals, the allocator, the limit of open files, and the log. REQUIRES: BlockSignal
// was called, and no other thread was started.
void SetUpServer(const ServerFlags& flags);

// Checks that the ports in the listen flags are free, before a model is loaded or a store is
// opened. Port 0 is always free. kUnavailable names the flag and the address.
absl::Status CheckPorts(const ServerFlags& flags);
// Checks the address `listen`. `prefix`: the part of its flag's name before "listen".
absl::Status CheckPort(const char* prefix, const std::string& listen);

// Serves until a stop signal or StopForDevice. After a drain, returns the exit code of the process:
// 0, or 1 if the device failed. Returns an error if the server could not start. `drain`: called
// when the drain begins; null: nothing. `flush`: called when no call runs any more. `stopped` logs
// the stop when main ends.
absl::StatusOr<int> Serve(const ServerFlags& flags, const std::vector<NamedService>& services,
                          Admission* admission, Metrics* metrics, const ServerAccess& access,
                          const std::function<void(absl::Time deadline)>& flush,
                          StoppedLine* stopped, const std::function<void()>& drain = nullptr);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_SERVER_SERVING_H_
