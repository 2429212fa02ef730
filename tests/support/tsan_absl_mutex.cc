// Makes ThreadSanitizer work with Debian's Abseil. Linked only with -DHEARTH_SANITIZE=thread.
//
// The packaged libabsl is not built with the sanitizer, so the sanitizer does not see that
// absl::Mutex orders accesses, and reports every guarded access. These definitions come before the
// library's, report each lock and unlock to the sanitizer, and call the library. Conditions are
// evaluated by the thread that unlocks, under the mutex, but after the unlock was reported: reads
// in conditions are ignored.
#include <dlfcn.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
// RocksDB is not instrumented either, and orders much of its work by atomics: the leader of a group
// of writers copies the batches of the others with libstdc++'s string functions.
const char* __tsan_default_suppressions() {
  return "race:librocksdb.so\n"
         "called_from_lib:librocksdb.so\n"
         "called_from_lib:libstdc++.so\n";
}
}

namespace {

template <typename Function>
Function Next(const char* mangled) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, mangled));
}

class IgnoreReads {
 public:
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static const auto next = Next<void (*)(Mutex*)>("_ZN4absl7debian35Mutex4LockEv");
  {
    IgnoreReads ignore;
    next(this);
  }
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static const auto next = Next<void (*)(Mutex*)>("_ZN4absl7debian35Mutex6UnlockEv");
  __tsan_release(this);
  IgnoreReads ignore;
  next(this);
}

// Readers are also ordered among themselves; this hides no race, because readers do not write.
void Mutex::ReaderLock() {
  static const auto next = Next<void (*)(Mutex*)>("_ZN4absl7debian35Mutex10ReaderLockEv");
  {
    IgnoreReads ignore;
    next(this);
  }
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static const auto next = Next<void (*)(Mutex*)>("_ZN4absl7debian35Mutex12ReaderUnlockEv");
  __tsan_release(this);
  IgnoreReads ignore;
  next(this);
}

void Mutex::Await(const Condition& condition) {
  static const auto next =
      Next<void (*)(Mutex*, const Condition&)>("_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE");
  __tsan_release(this);
  {
    IgnoreReads ignore;
    next(this, condition);
  }
  __tsan_acquire(this);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static const auto next = Next<bool (*)(Mutex*, const Condition&, Time)>(
      "_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  __tsan_release(this);
  bool met = false;
  {
    IgnoreReads ignore;
    met = next(this, condition, deadline);
  }
  __tsan_acquire(this);
  return met;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const auto next = Next<bool (*)(CondVar*, Mutex*, Time)>(
      "_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  __tsan_release(mutex);
  bool timed_out = false;
  {
    IgnoreReads ignore;
    timed_out = next(this, mutex, deadline);
  }
  __tsan_acquire(mutex);
  return timed_out;
}

// In a Notification, the flag that HasBeenNotified reads follows the mutex. The read is inlined
// into instrumented code, so the flag's address carries the order.
static void* FlagOf(const Notification* notification) {
  return reinterpret_cast<char*>(const_cast<Notification*>(notification)) + sizeof(Mutex);
}

void Notification::Notify() {
  static const auto next = Next<void (*)(Notification*)>("_ZN4absl7debian312Notification6NotifyEv");
  __tsan_release(FlagOf(this));
  next(this);
}

void Notification::WaitForNotification() const {
  static const auto next =
      Next<void (*)(const Notification*)>("_ZNK4absl7debian312Notification19WaitForNotificationEv");
  next(this);
  __tsan_acquire(FlagOf(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static const auto next = Next<bool (*)(const Notification*, Duration)>(
      "_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
  const bool notified = next(this, timeout);
  if (notified) __tsan_acquire(FlagOf(this));
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
