// The set-up of a server process: stop signals, the allocator, open files, the error of a failed
// start.
//
// Thread safety: called from main.
#ifndef HEARTH_SERVICES_SERVING_PROCESS_H_
#define HEARTH_SERVICES_SERVING_PROCESS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace hearth {

// Until EndStartGuard, a start that is refused memory or a thread ends with one line on stderr and
// exit code 1, whichever thread or library was refused it. The line names the flags that ask for
// memory, with their values, and the limits. Without a limit of address space (ulimit -v) or
// threads (ulimit -u, below the kernel's own), only std::bad_alloc and a refused std::thread end in
// this way; with one, other exceptions that nothing caught and an abort do so too, and the line
// says that the cause is not certain. `asked`: --host-bytes=4GiB and the like. REQUIRES: before any
// other thread starts.
void GuardStart(const std::string& program, const std::vector<std::string>& asked);
// From now on the process ends as it would without GuardStart: a core file is worth more than a
// line.
void EndStartGuard();

// Blocks SIGTERM, SIGINT and SIGQUIT, which a thread of its own takes from now on, and SIGHUP,
// which a SignalThread does; ignores SIGUSR2 and, unless it is blocked for a SignalThread, SIGUSR1.
// Until KeepStopSignal a stop signal ends the process at once, with exit code 0: a start may take
// minutes. REQUIRES: before any other thread starts; threads inherit the mask.
void HandleStopSignals();
// From now on the first stop signal is for WaitForStopSignal; a second one ends the process at
// once, with exit code 1.
void KeepStopSignal();
// Returns the name of the stop signal that came.
std::string WaitForStopSignal();

// Keeps freed memory instead of handing it back to the system: buffers of megabytes come and go
// with every request, and touching fresh memory costs more than copying into it.
void KeepFreedMemory();

// Raises the soft limit of open files to the hard one: the usual 1,024 is for programs that use
// select, and a store keeps a file open for each 64 MiB.
void RaiseOpenFileLimit();

// Prints "program: message" to stderr and returns 1, for main's return.
int FailToStart(const std::string& program, const absl::Status& status);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_PROCESS_H_
