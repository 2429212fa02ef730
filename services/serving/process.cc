#include "services/serving/process.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

// The line of a failed start, made while there is memory. Written by one thread, before others
// start; read by handlers.
char g_refused_line[2048];
std::atomic<bool> g_is_starting{false};

// The signals by which a library ends the process if it is refused memory or a thread.
constexpr int kEndsOfLibraries[] = {SIGABRT, SIGSEGV, SIGBUS};

// As `ulimit` prints it.
std::string LimitText(__rlimit_resource resource, uint64_t unit) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return absl::StrCat(limit.rlim_cur / unit);
}

// Takes no memory and no lock. `why`: of an exception; null: a library's words, if any, are above.
[[noreturn]] void EndStart(const char* why) {
  const auto say = [](const char* text) {
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) _exit(1);
  };
  say(g_refused_line);
  if (why != nullptr) say(" (");
  if (why != nullptr) say(why);
  say(why != nullptr ? ")\n" : "\n");
  _exit(1);
}

void OnEndOfLibrary(int signal) {
  if (g_is_starting.exchange(false)) EndStart(signal == SIGABRT ? "SIGABRT" : "SIGSEGV");
  std::signal(signal, SIG_DFL);
  raise(signal);
}

// The end by an exception that nothing caught.
[[noreturn]] void OnTerminate() {
  if (!g_is_starting.exchange(false)) std::abort();
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    EndStart(error.what());
  } catch (...) {
  }
  EndStart(nullptr);
}

}  // namespace

void GuardStart(const std::string& program, const std::vector<std::string>& asked) {
  const std::string line = absl::StrCat(
      program,
      ": the start was ended: the system refused memory or a thread, or a library failed; ",
      absl::StrJoin(asked, " "), " ask for memory, ulimit -v is ", LimitText(RLIMIT_AS, 1024),
      " and ulimit -u ", LimitText(RLIMIT_NPROC, 1), ": lower the flags, or raise the limits");
  std::snprintf(g_refused_line, sizeof(g_refused_line), "%s", line.c_str());
  g_is_starting.store(true);
  std::set_terminate(&OnTerminate);
  rlimit limit{};
  const bool is_limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  for (const int signal : kEndsOfLibraries) {
    // Without a limit a crash is no lack of memory: its core file is of use.
    if (signal == SIGABRT || is_limited) std::signal(signal, &OnEndOfLibrary);
  }
}

void EndStartGuard() {
  if (!g_is_starting.exchange(false)) return;
  for (const int signal : kEndsOfLibraries) std::signal(signal, SIG_DFL);
}

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
