// EventLoop: one thread that waits for sockets, timers and posted tasks.
//
// Thread safety: Post, Start and Stop may be called from any thread; the other methods from the
// loop's thread, or while the loop does not run. Ownership: descriptors and watchers belong to the
// callers, which call Forget() before closing a descriptor. Invariants: (1) nothing runs before
// Start or after Stop; (2) posted tasks run in order; (3) after Forget(), a watcher is not called,
// even for events that were ready before.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_EVENT_LOOP_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_EVENT_LOOP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"

namespace hearth {

class EventLoop {
 public:
  class Watcher {
   public:
    virtual ~Watcher() = default;
    virtual void OnReady(uint32_t events) = 0;  // `events`: epoll flags
  };
  using Task = std::function<void()>;
  using Timer = std::pair<absl::Time, uint64_t>;

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  void Start();
  void Stop();
  // Runs `task` in the loop's thread, after the events that are ready now.
  void Post(Task task) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the time of a steady clock, comparable only with other results of this method.
  absl::Time Now() { return clock_.Now(); }
  // Calls `watcher` whenever any of `events` is ready on `fd`. Replaces an earlier Watch() of `fd`.
  void Watch(int fd, uint32_t events, Watcher* watcher);
  void Forget(int fd);
  Timer At(absl::Time when, Task task);
  // Cancels a timer. Ignores a timer that has run or was cancelled.
  void Cancel(const Timer& timer) { timers_.erase(timer); }

 private:
  struct Watched {
    uint32_t number = 0;  // distinguishes this watch from earlier watches of the same descriptor
    uint32_t events = 0;
    Watcher* watcher = nullptr;
  };

  void Run();
  void RunPosted() ABSL_LOCKS_EXCLUDED(mutex_);
  void RunTimers();
  int WaitMs() ABSL_LOCKS_EXCLUDED(mutex_);

  SteadyClock clock_;
  const int poll_, wake_;
  absl::flat_hash_map<int, Watched> watched_;
  uint32_t last_number_ = 0;
  std::map<Timer, Task> timers_;
  uint64_t last_timer_ = 0;
  std::atomic<bool> stops_{false};
  absl::Mutex mutex_;
  std::vector<Task> posted_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_EVENT_LOOP_H_
