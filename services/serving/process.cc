#include "services/serving/process.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "services/cli/signal_thread.h"
#include "services/serving/logging.h"

namespace hearth {
namespace {

// The largest threshold that glibc takes on 64-bit systems; an object of the 27B at C = 128 is
// above it and is mapped on its own.
constexpr int kMmapThresholdBytes = 32 << 20;
constexpr int kTrimThresholdBytes = 1 << 30;
// By default each of the first eight threads a core gets a heap of its own, and with it freed
// memory that no other thread can use: a publish then meets fresh memory until all have served one.
// Small blocks are cached by each thread anyway.
constexpr int kMaxHeaps = 2;

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGQUIT);
  return signals;
}

const char* SignalName(int signal) {
  return signal == SIGTERM ? "SIGTERM" : signal == SIGQUIT ? "SIGQUIT" : "SIGINT";
}

struct StopState {
  absl::Mutex mutex;
  bool is_kept ABSL_GUARDED_BY(mutex) = false;
  int came ABSL_GUARDED_BY(mutex) = 0;
};

StopState& Stop() {
  static StopState& stop = *new StopState;
  return stop;
}

void TakeStopSignals() {
  const sigset_t signals = StopSignals();
  for (int signal = 0; sigwait(&signals, &signal) == 0;) {
    absl::MutexLock lock(&Stop().mutex);
    if (!Stop().is_kept) {
      Log(LogLevel::kInfo, "stopped before it was ready", {{"signal", SignalName(signal)}});
      _exit(0);
    }
    if (Stop().came != 0) _exit(1);
    Stop().came = signal;
  }
}

}  // namespace

void HandleStopSignals() {
  sigset_t signals = StopSignals();
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  if (!IsSignalBlocked(SIGUSR1)) std::signal(SIGUSR1, SIG_IGN);
  std::signal(SIGUSR2, SIG_IGN);
  // A caller that goes away while it is written to is an error of that write, not of the process.
  std::signal(SIGPIPE, SIG_IGN);
  std::thread(&TakeStopSignals).detach();
}

void KeepStopSignal() {
  absl::MutexLock lock(&Stop().mutex);
  Stop().is_kept = true;
}

std::string WaitForStopSignal() {
  StopState& stop = Stop();
  absl::MutexLock lock(&stop.mutex);
  stop.mutex.Await(absl::Condition(
      +[](StopState* state) ABSL_NO_THREAD_SAFETY_ANALYSIS { return state->came != 0; }, &stop));
  return SignalName(stop.came);
}

void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, kMmapThresholdBytes);
  mallopt(M_TRIM_THRESHOLD, kTrimThresholdBytes);
  mallopt(M_ARENA_MAX, kMaxHeaps);
}

void RaiseOpenFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // refused: what there is has to do
}

int FailToStart(const std::string& program, const absl::Status& status) {
  const std::string line = absl::StrReplaceAll(status.message(), {{"\n", " "}});
  std::fprintf(stderr, "%s: %s\n", program.c_str(), line.c_str());
  return 1;
}

}  // namespace hearth
