// EventHub: delivers store events to subscribers, in order, from its own thread.
//
// Events of each tenant are numbered separately, so that the numbers reveal nothing about other
// tenants. Posting never blocks. A subscriber that is too slow loses events, and gets one event of
// kind kLost instead of them. The last events of all tenants are remembered, so that a subscriber
// can resume after a disconnection. Thread safety: all methods from any thread, including from
// callbacks.
#ifndef HEARTH_CACHE_STORE_STORE_EVENT_HUB_H_
#define HEARTH_CACHE_STORE_STORE_EVENT_HUB_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/base/stats.h"
#include "cache_store/store/store_admin.h"

namespace hearth {

class EventHub {
 public:
  // Limit of the queued events, and of the remembered events, of all tenants together: about 300
  // bytes each, 1.2 MiB.
  static constexpr size_t kMaxQueuedEvents = 4096;
  static constexpr size_t kMaxRecentEvents = 4096;

  explicit EventHub(Counters* counters);
  ~EventHub();

  void Post(StoreEvent::Kind kind, RestorePoint point,
            std::optional<Removal> removed = std::nullopt);
  // Subscribes to the tenant's events from now on. `after`: number of the last event that the
  // subscriber received before. If all later events are remembered, the result is `resumed` and
  // contains them. The handle may be destroyed after the hub. Its destructor waits for a running
  // callback, unless the callback itself destroys the handle.
  WatchStart Subscribe(const std::string& tenant, std::optional<uint64_t> after,
                       StoreAdmin::EventCallback callback);

 private:
  using SharedEvent = std::shared_ptr<const StoreEvent>;

  struct Subscriber {
    std::string tenant;
    StoreAdmin::EventCallback callback;
    absl::Mutex mu;  // held while the subscriber's callback runs
    bool active ABSL_GUARDED_BY(mu) = true;
    // number of the last event that was delivered to this subscriber, or lost; guarded by mu after
    // the subscriber is in the list
    uint64_t seen = 0;
  };
  struct State {
    absl::Mutex mu;
    std::deque<SharedEvent> queue ABSL_GUARDED_BY(mu);
    std::deque<SharedEvent> recent ABSL_GUARDED_BY(mu);
    std::vector<std::shared_ptr<Subscriber>> subscribers ABSL_GUARDED_BY(mu);
    // Number of the last event of each tenant that ever stored an entry.
    absl::flat_hash_map<std::string, uint64_t> sequences ABSL_GUARDED_BY(mu);
    // whether events were lost because the queue was full, and kLost was not delivered yet
    bool losing ABSL_GUARDED_BY(mu) = false;
    bool stopping ABSL_GUARDED_BY(mu) = false;
    std::thread::id thread ABSL_GUARDED_BY(mu);
  };
  void Run();
  // Delivers `event`, and first reports all undelivered events before it as lost. If `event` is
  // null, reports all events up to `sequence` as lost.
  static void Deliver(Subscriber* subscriber, uint64_t sequence, const StoreEvent* event);

  Counters* const counters_;
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_EVENT_HUB_H_
