#include "services/serving.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "services/logging.h"
#include "services/process.h"
#include "services/signal_thread.h"
#include "services/version.h"

namespace hearth {

absl::Status Serve(const ServerFlags& flags, const std::vector<NamedService>& services,
                   CallGate* gate, Metrics* metrics, const ServerAccess& access,
                   const std::function<void(absl::Time)>& flush) {
  if (!flags.metrics_listen.empty()) {
    absl::StatusOr<std::string> address = metrics->Serve(flags.metrics_listen);
    if (!address.ok()) return address.status();
    Log(LogLevel::kInfo, "serving metrics", {{"address", *address}});
    if (!flags.metrics_address_file.empty()) {
      absl::Status written = WriteFileWhole(flags.metrics_address_file, *address);
      if (!written.ok()) return written;
    }
  }
  absl::StatusOr<std::unique_ptr<ServerRunner>> runner =
      ServerRunner::Start(flags.listen, services, gate, access.credentials);
  if (!runner.ok()) return runner.status();
  if (!flags.address_file.empty()) {
    absl::Status written = WriteFileWhole(flags.address_file, (*runner)->address());
    if (!written.ok()) return written;
  }
  const SignalThread reloads(SIGHUP, [&access] { access.Reload(); });
  Log(LogLevel::kInfo, "ready", {{"address", (*runner)->address()}, {"version", kVersion}});

  const std::string signal = WaitForStopSignal();
  ExitAtNextStopSignal();
  const absl::Time start = absl::Now();
  Log(LogLevel::kInfo, "draining", {{"signal", signal}, {"running_calls", gate->running()}});
  (*runner)->Drain(flags.drain_timeout, flush);
  Log(LogLevel::kInfo, "stopped",
      {{"drain_ms", absl::ToInt64Milliseconds(absl::Now() - start)},
       {"cut_off_calls", gate->running()}});
  return absl::OkStatus();
}

}  // namespace hearth
