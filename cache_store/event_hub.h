// Delivers store events to subscribers, in order, from one thread of its own.
//
// Posting never blocks: a subscriber that lags more than kMaxQueuedEvents behind loses events and
// is told so by one kLost. Thread safety: all methods from any thread, callbacks included.
#ifndef HEARTH_CACHE_STORE_EVENT_HUB_H_
#define HEARTH_CACHE_STORE_EVENT_HUB_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/stats.h"
#include "cache_store/tiered_store.h"

namespace hearth {

class EventHub {
 public:
  // About 300 bytes each: 1.2 MiB at most for all subscribers together.
  static constexpr size_t kMaxQueuedEvents = 4096;

  explicit EventHub(Counters* counters);
  ~EventHub();

  void Post(StoreEvent::Kind kind, RestorePoint point);
  // The handle may be dropped after the hub; it waits for a running callback unless dropped by it.
  std::shared_ptr<void> Subscribe(const std::string& tenant, TieredStore::EventCallback callback);

 private:
  struct Subscriber {
    std::string tenant;
    TieredStore::EventCallback callback;
    absl::Mutex mu;  // held while the callback runs
    bool active ABSL_GUARDED_BY(mu) = true;
    bool lost = false;  // guarded by State::mu
  };
  struct State {
    absl::Mutex mu;
    std::deque<StoreEvent> queue ABSL_GUARDED_BY(mu);
    std::vector<std::shared_ptr<Subscriber>> subscribers ABSL_GUARDED_BY(mu);
    uint64_t sequence ABSL_GUARDED_BY(mu) = 0;
    bool stopping ABSL_GUARDED_BY(mu) = false;
    std::thread::id thread ABSL_GUARDED_BY(mu);
  };
  void Run();
  static void Deliver(Subscriber* subscriber, const StoreEvent& event, bool lost);

  Counters* const counters_;
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_EVENT_HUB_H_
