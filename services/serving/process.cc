#include "services/serving/process.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "absl/strings/str_replace.h"

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

int WaitForSignal() {
  const sigset_t signals = StopSignals();
  int signal = 0;
  sigwait(&signals, &signal);
  return signal;
}

}  // namespace

void BlockStopSignals() {
  sigset_t signals = StopSignals();
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGUSR1, SIG_IGN);
  std::signal(SIGUSR2, SIG_IGN);
  // A caller that goes away while it is written to is an error of that write, not of the process.
  std::signal(SIGPIPE, SIG_IGN);
}

std::string WaitForStopSignal() {
  switch (WaitForSignal()) {
    case SIGTERM:
      return "SIGTERM";
    case SIGQUIT:
      return "SIGQUIT";
    default:
      return "SIGINT";
  }
}

void ExitAtNextStopSignal() {
  std::thread([] {
    WaitForSignal();
    _exit(1);
  }).detach();
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
