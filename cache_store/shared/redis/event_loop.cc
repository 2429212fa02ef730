#include "cache_store/shared/redis/event_loop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>

namespace hearth {
namespace {

constexpr int kEventsAtOnce = 64;
constexpr int kWaitMsMax = 60000;

thread_local const EventLoop* runs_here = nullptr;

void Poll(int poll, int operation, int fd, uint32_t number, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = uint64_t{number} << 32 | static_cast<uint32_t>(fd);
  const int result = epoll_ctl(poll, operation, fd, &event);
  assert(result == 0 && "the descriptor is its owner's, and open");
  (void)result;
}

}  // namespace

EventLoop::EventLoop()
    : poll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  assert(poll_ >= 0 && wake_ >= 0);
  Poll(poll_, EPOLL_CTL_ADD, wake_, 0, EPOLLIN);
}

EventLoop::~EventLoop() {
  Stop();
  close(poll_);
  close(wake_);
}

void EventLoop::Start() {
  assert(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void EventLoop::Stop() {
  if (!thread_.joinable()) return;
  stops_ = true;
  eventfd_write(wake_, 1);
  thread_.join();
}

void EventLoop::Post(Task task) {
  bool wakes = false;
  {
    absl::MutexLock lock(&mutex_);
    wakes = posted_.empty();
    posted_.push_back(std::move(task));
  }
  if (wakes && runs_here != this) eventfd_write(wake_, 1);
}

void EventLoop::Watch(int fd, uint32_t events, Watcher* watcher) {
  Watched& watched = watched_[fd];
  const bool is_new = watched.watcher == nullptr;
  if (is_new) watched.number = ++last_number_;
  if (is_new || watched.events != events) {
    Poll(poll_, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, watched.number, events);
  }
  watched.events = events;
  watched.watcher = watcher;
}

void EventLoop::Forget(int fd) {
  if (watched_.erase(fd) > 0) Poll(poll_, EPOLL_CTL_DEL, fd, 0, 0);
}

EventLoop::Timer EventLoop::At(absl::Time when, Task task) {
  return timers_.emplace(Timer(when, ++last_timer_), std::move(task)).first->first;
}

int EventLoop::WaitMs() {
  {
    absl::MutexLock lock(&mutex_);
    if (!posted_.empty()) return 0;
  }
  if (timers_.empty()) return kWaitMsMax;
  const absl::Duration wait = timers_.begin()->first.first - Now();
  // Round up the waiting time, so that the loop does not spin until the timer is due.
  const int64_t ms = absl::ToInt64Milliseconds(wait + absl::Microseconds(999));
  return static_cast<int>(std::clamp<int64_t>(ms, 0, kWaitMsMax));
}

void EventLoop::Run() {
  runs_here = this;
  pthread_setname_np(pthread_self(), "redis-loop");
  // Block all signals in this thread. SIGPIPE, caused by a write of TLS, would end the process.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  epoll_event events[kEventsAtOnce];
  while (!stops_) {
    const int count = epoll_wait(poll_, events, kEventsAtOnce, WaitMs());
    for (int i = 0; i < count; ++i) {
      const int fd = static_cast<int>(static_cast<uint32_t>(events[i].data.u64));
      if (fd == wake_) {
        eventfd_t ignored = 0;
        eventfd_read(wake_, &ignored);
        continue;
      }
      const auto it = watched_.find(fd);
      if (it == watched_.end() || it->second.number != events[i].data.u64 >> 32) continue;
      it->second.watcher->OnReady(events[i].events);
    }
    RunTimers();
    RunPosted();
  }
}

void EventLoop::RunTimers() {
  const absl::Time now = Now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    const auto node = timers_.extract(timers_.begin());
    node.mapped()();
  }
}

void EventLoop::RunPosted() {
  std::vector<Task> tasks;
  {
    absl::MutexLock lock(&mutex_);
    tasks.swap(posted_);
  }
  for (Task& task : tasks) task();
}

}  // namespace hearth
