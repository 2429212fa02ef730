#include "services/serving/server/serving.h"

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "services/cli/signal_thread.h"
#include "services/cli/version.h"
#include "services/rpc/proto_conversion.h"
#include "services/serving/logging.h"
#include "services/serving/process.h"

namespace hearth {

namespace {

absl::StatusOr<ConnectionLimits> LimitsFrom(const ServerFlags& flags) {
  ConnectionLimits limits;
  limits.connections = flags.max_connections;
  limits.all_bytes = flags.unfinished_bytes;
  limits.each_bytes = std::min(limits.each_bytes, limits.all_bytes);
  if (flags.max_connections == 0) {
    return absl::InvalidArgumentError("--max-connections: must be at least 1; got 0");
  }
  if (flags.unfinished_bytes < kMaxGrpcMessageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--unfinished-bytes: must be at least ", kMaxGrpcMessageBytes,
                     ", the size of the largest message; got ", flags.unfinished_bytes));
  }
  return limits;
}

}  // namespace

void SetUpServer(const ServerFlags& flags) {
  SetUpLogging(flags.log_level, flags.log_format);  // first: the functions below may log
  HandleStopSignals();
  KeepFreedMemory();
  RaiseOpenFileLimit();
  LogWarnings(flags.mistyped_variables);
}

absl::Status CheckPorts(const ServerFlags& flags) {
  const absl::Status status = CheckPort("", flags.listen);
  if (!status.ok() || flags.metrics_listen.empty()) return status;
  return CheckPort("metrics-", flags.metrics_listen);
}

absl::Status CheckPort(const char* prefix, const std::string& listen) {
  const absl::Status status = Listeners(listen).Check();
  return absl::Status(status.code(), absl::StrCat(prefix, status.message()));
}

absl::StatusOr<int> Serve(const ServerFlags& flags, const std::vector<NamedService>& services,
                          Admission* admission, Metrics* metrics, const ServerAccess& access,
                          const std::function<void(absl::Time)>& flush, StoppedLine* stopped,
                          const std::function<void()>& drain) {
  const absl::StatusOr<ConnectionLimits> limits = LimitsFrom(flags);
  if (!limits.ok()) return limits.status();
  KeepStopSignal();
  if (!flags.metrics_listen.empty()) {
    absl::StatusOr<std::string> address = metrics->Serve(
        flags.metrics_listen, absl::StrSplit(flags.metrics_hosts, ',', absl::SkipWhitespace()));
    if (!address.ok()) return address.status();
    Log(LogLevel::kInfo, "serving metrics", {{"address", *address}});
    if (!flags.metrics_address_file.empty()) {
      absl::Status written = WriteFileWhole(flags.metrics_address_file, *address);
      if (!written.ok()) return written;
    }
  }
  absl::StatusOr<std::unique_ptr<ServerRunner>> runner =
      ServerRunner::Start(flags.listen, services, admission, access.credentials, *limits);
  if (!runner.ok()) return runner.status();
  if (!flags.address_file.empty()) {
    absl::Status written = WriteFileWhole(flags.address_file, (*runner)->address());
    if (!written.ok()) return written;
  }
  const SignalThread reloads(SIGHUP, [&access] { access.Reload(); });
  EndStartGuard();
  Log(LogLevel::kInfo, "ready", {{"address", (*runner)->address()}, {"version", kVersion}});

  const std::string signal = WaitForStopSignal();
  const absl::Time start = absl::Now();
  std::vector<LogField> fields = {{"running_calls", admission->running()}};
  if (!signal.empty()) fields.insert(fields.begin(), {"signal", signal});
  Log(LogLevel::kInfo, "draining", fields);
  if (drain) drain();
  const int cut_off = (*runner)->Drain(flags.drain_timeout, flush);
  stopped->SetDrained(absl::Now() - start, cut_off);
  return DeviceFailure().empty() ? 0 : 1;
}

}  // namespace hearth
