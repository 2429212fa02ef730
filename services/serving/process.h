// Sets up a server process: stop signals, the allocator, the limit of open files, and the message
// of a failed start.
//
// Thread safety: call from main.
#ifndef HEARTH_SERVICES_SERVING_PROCESS_H_
#define HEARTH_SERVICES_SERVING_PROCESS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace hearth {

// From now until EndStartGuard: if the system refuses memory or a thread, the process ends with one
// line on stderr and exit code 1. The line names the flags that ask for memory, with their values,
// and the limits. Without a limit of address space (ulimit -v) or of threads (ulimit -u, below the
// kernel's own limit), this covers only std::bad_alloc and a refused std::thread. With such a limit
// it also covers other uncaught exceptions and aborts, and the line says that the cause is not
// certain. `asked`: flags that ask for memory, such as "--host-bytes=4GiB". REQUIRES: no other
// thread was started.
void GuardStart(const std::string& program, const std::vector<std::string>& asked);
// Ends the guard. Afterwards a crash ends the process as usual, because a core file is more useful.
void EndStartGuard();

// Blocks SIGTERM, SIGINT and SIGQUIT, which a thread started here receives, and SIGHUP, which a
// SignalThread receives. Ignores SIGUSR2 and, unless it is blocked for a SignalThread, SIGUSR1.
// Until KeepStopSignal, a stop signal ends the process at once with exit code 0, because a start
// may take minutes. REQUIRES: no other thread was started, because threads inherit the signal mask.
void HandleStopSignals();
// From now on, the first stop signal is stored for WaitForStopSignal. A second one ends the process
// with exit code 1.
void KeepStopSignal();
// Waits for a stop signal or StopForDevice. Returns the signal's name, or "" without a signal.
std::string WaitForStopSignal();
// Logs that the device failed, and stops the process as a stop signal does, but with exit code 1.
// Thread safety: any thread. The first call counts.
void StopForDevice(const std::string& failure);
// Returns the failure of StopForDevice; "" if there is none. Thread safety: any thread.
std::string DeviceFailure();

// Makes malloc keep freed memory instead of returning it to the system. Every request allocates and
// frees buffers of megabytes, and touching fresh memory costs more than copying into it.
void KeepFreedMemory();

// Raises the soft limit of open files to the hard limit: the usual 1,024 is for programs that use
// select, and a store keeps one file open per 64 MiB.
void RaiseOpenFileLimit();

// Prints "program: message" to stderr and returns 1, for main's return.
int FailToStart(const std::string& program, const absl::Status& status);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_PROCESS_H_
