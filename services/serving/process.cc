#include "services/serving/process.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <new>
#include <system_error>
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

// The largest threshold that glibc accepts on 64-bit systems. Larger blocks, such as an object of
// the 27B model with chunks of 128 tokens, are mapped separately.
constexpr int kMmapThresholdBytes = 32 << 20;
constexpr int kTrimThresholdBytes = 1 << 30;
// By default glibc makes a heap for each new thread, up to eight heaps per core. Memory freed in
// one heap is useless to threads of another heap: a publish would touch fresh memory until each
// thread has served one publish. Each thread caches small blocks anyway.
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
  std::string failure ABSL_GUARDED_BY(mutex);  // of StopForDevice
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
      Log(LogLevel::kInfo, "stopped during the start", {{"signal", SignalName(signal)}});
      _exit(0);
    }
    if (Stop().came != 0) _exit(1);
    Stop().came = signal;
  }
}

// State of the start guard. Its texts are made at the start, while there is memory. Written by one
// thread before other threads start, and by EndStartGuard; read by signal handlers.
struct StartGuard {
  char program[128];
  char advice[2048];
  std::vector<int> signals;  // signals for which OnEndOfLibrary is the handler
  bool is_limited;           // whether address space or threads have a limit
  std::terminate_handler terminate_before;
  std::atomic<bool> is_on{false};
  std::atomic<pid_t> ending_thread{0};
};
StartGuard& Guard() {
  static StartGuard& guard = *new StartGuard;
  return guard;
}

rlim_t LimitOf(__rlimit_resource resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// Whether an operator lowered the limit of threads. The kernel's own limit for a user is half of
// all threads.
bool AreThreadsLimited() {
  rlim_t all = 0;
  std::ifstream("/proc/sys/kernel/threads-max") >> all;
  return LimitOf(RLIMIT_NPROC) < all / 2;
}

// Returns a resource limit in `ulimit`'s format.
std::string LimitText(__rlimit_resource resource, uint64_t unit) {
  const rlim_t limit = LimitOf(resource);
  return limit == RLIM_INFINITY ? "unlimited" : absl::StrCat(limit / unit);
}

// Returns false if the guard is off. If another thread is ending the start, waits until the process
// ends.
bool MayEndStart() {
  if (!Guard().is_on.load()) return false;
  pid_t ending = 0;
  if (Guard().ending_thread.compare_exchange_strong(ending, gettid())) return true;
  if (ending == gettid()) _exit(1);  // this thread failed again while it wrote the line
  for (;;) pause();
}

// Ends the start with one line on stderr. Allocates nothing and takes no lock. `is_refusal`: memory
// or a thread was certainly refused. `what`: text of the exception or name of the signal.
[[noreturn]] void EndStart(bool is_refusal, const char* what) {
  const auto say = [](const char* text) {
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) _exit(1);
  };
  say(Guard().program);
  say(is_refusal ? ": the start failed: the system refused memory or a thread ("
                 : ": the start failed: ");
  say(what);
  say(is_refusal ? ")"
                 : "; unless a line above names the cause, the system refused memory or a thread");
  say(Guard().advice);
  _exit(1);
}

void OnEndOfLibrary(int signal) {
  if (MayEndStart()) {
    EndStart(false, signal == SIGABRT ? "SIGABRT" : signal == SIGBUS ? "SIGBUS" : "SIGSEGV");
  }
  std::signal(signal, SIG_DFL);
  raise(signal);
}

// Ends the start if the uncaught exception is a sign of refused memory or threads. Otherwise
// returns.
void EndStartByException() {
  const bool is_limited = Guard().is_limited;
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
    // There is no current exception: it may be that of a refused thread, which unwound past running
    // std::threads.
    if (is_limited && MayEndStart()) EndStart(false, "std::terminate");
  } catch (const std::bad_alloc& error) {
    if (MayEndStart()) EndStart(true, error.what());
  } catch (const std::system_error& error) {
    const int code = error.code().value();
    const bool is_refusal = code == EAGAIN || code == ENOMEM;
    if ((is_refusal || is_limited) && MayEndStart()) EndStart(is_refusal, error.what());
  } catch (const std::exception& error) {
    if (is_limited && MayEndStart()) EndStart(false, error.what());
  } catch (...) {
    if (is_limited && MayEndStart()) EndStart(false, "an exception");
  }
}

[[noreturn]] void OnTerminate() {
  EndStartByException();
  if (Guard().terminate_before != nullptr) Guard().terminate_before();
  std::abort();
}

}  // namespace

void GuardStart(const std::string& program, const std::vector<std::string>& asked) {
  StartGuard& guard = Guard();
  const std::string advice = absl::StrCat(
      "; ", absl::StrJoin(asked, " "), " ask for memory, ulimit -v is ", LimitText(RLIMIT_AS, 1024),
      " and ulimit -u ", LimitText(RLIMIT_NPROC, 1), "; lower the flags or raise the limits\n");
  std::snprintf(guard.program, sizeof(guard.program), "%s", program.c_str());
  std::snprintf(guard.advice, sizeof(guard.advice), "%s", advice.c_str());
  const bool is_memory_limited = LimitOf(RLIMIT_AS) != RLIM_INFINITY;
  guard.is_limited = is_memory_limited || AreThreadsLimited();
  // If memory is refused, a library may abort or use a null pointer; if a thread is refused, a
  // library aborts. Without a limit, a crash has another cause, and its core file is useful.
  if (guard.is_limited) guard.signals = {SIGABRT};
  if (is_memory_limited) guard.signals = {SIGABRT, SIGSEGV, SIGBUS};
  guard.is_on.store(true);
  guard.terminate_before = std::set_terminate(&OnTerminate);
  for (const int signal : guard.signals) std::signal(signal, &OnEndOfLibrary);
}

void EndStartGuard() {
  if (!Guard().is_on.exchange(false)) return;
  for (const int signal : Guard().signals) std::signal(signal, SIG_DFL);
  std::set_terminate(Guard().terminate_before);
}

void HandleStopSignals() {
  sigset_t signals = StopSignals();
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  if (!IsSignalBlocked(SIGUSR1)) std::signal(SIGUSR1, SIG_IGN);
  std::signal(SIGUSR2, SIG_IGN);
  // Ignore SIGPIPE: if a caller leaves during a write, the write must fail, not the process.
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
      +[](StopState* state)
           ABSL_NO_THREAD_SAFETY_ANALYSIS { return state->came != 0 || !state->failure.empty(); },
      &stop));
  return stop.came == 0 ? "" : SignalName(stop.came);
}

void StopForDevice(const std::string& failure) {
  {
    absl::MutexLock lock(&Stop().mutex);
    if (!Stop().failure.empty()) return;
    Stop().failure = failure;
  }
  Log(LogLevel::kError, "the device failed; the process ends, because only a restart resets it",
      {{"reason", failure}});
}

std::string DeviceFailure() {
  absl::MutexLock lock(&Stop().mutex);
  return Stop().failure;
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
  setrlimit(RLIMIT_NOFILE, &limit);  // if this fails, the present limit stays
}

int FailToStart(const std::string& program, const absl::Status& status) {
  const std::string line = absl::StrReplaceAll(status.message(), {{"\n", " "}});
  std::fprintf(stderr, "%s: %s\n", program.c_str(), line.c_str());
  return 1;
}

}  // namespace hearth
