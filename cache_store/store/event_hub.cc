#include "cache_store/store/event_hub.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace hearth {

EventHub::EventHub(Counters* counters) : counters_(counters), state_(std::make_shared<State>()) {
  thread_ = std::thread([this] { Run(); });
}

EventHub::~EventHub() {
  {
    absl::MutexLock lock(&state_->mu);
    state_->stopping = true;
  }
  thread_.join();
}

void EventHub::Post(StoreEvent::Kind kind, RestorePoint point, std::optional<Removal> removed) {
  absl::MutexLock lock(&state_->mu);
  const uint64_t sequence = ++state_->sequences[point.tenant];
  const auto event =
      std::make_shared<const StoreEvent>(StoreEvent{kind, sequence, std::move(point), removed});
  state_->recent.push_back(event);
  if (state_->recent.size() > kMaxRecentEvents) state_->recent.pop_front();
  if (state_->subscribers.empty()) return;
  if (state_->queue.size() >= kMaxQueuedEvents) {
    counters_->Add(Counter::kEventsLost);
    state_->losing = true;
    return;
  }
  state_->queue.push_back(event);
}

WatchStart EventHub::Subscribe(const std::string& tenant, std::optional<uint64_t> after,
                               StoreAdmin::EventCallback callback) {
  assert(callback != nullptr);
  auto subscriber = std::make_shared<Subscriber>();
  subscriber->tenant = tenant;
  subscriber->callback = std::move(callback);
  const std::shared_ptr<State> state = state_;
  WatchStart start;
  {
    absl::MutexLock lock(&state->mu);
    const auto counted = state->sequences.find(tenant);
    start.sequence = counted == state->sequences.end() ? 0 : counted->second;
    if (after.has_value() && *after <= start.sequence) {
      for (const SharedEvent& event : state->recent) {
        if (event->restore_point.tenant == tenant && event->sequence > *after) {
          start.missed.push_back(*event);
        }
      }
      start.resumed = start.missed.size() == start.sequence - *after;
      if (!start.resumed) start.missed.clear();
    }
    subscriber->seen = start.sequence;
    state->subscribers.push_back(subscriber);
  }
  start.subscription = std::shared_ptr<void>(subscriber.get(), [state, subscriber](void*) {
    bool inside_callback = false;
    {
      absl::MutexLock lock(&state->mu);
      auto& all = state->subscribers;
      all.erase(std::remove(all.begin(), all.end(), subscriber), all.end());
      inside_callback = state->thread == std::this_thread::get_id();
    }
    // this was the last event: the subscriber is not in the list any more
    if (inside_callback) return;
    absl::MutexLock lock(&subscriber->mu);
    subscriber->active = false;
  });
  return start;
}

void EventHub::Deliver(Subscriber* subscriber, uint64_t sequence, const StoreEvent* event) {
  if (event != nullptr && event->restore_point.tenant != subscriber->tenant) return;
  absl::MutexLock lock(&subscriber->mu);
  // Skip events that were queued before the subscription: WatchStart contains them.
  if (!subscriber->active || sequence <= subscriber->seen) return;
  StoreEvent gap;  // tells the subscriber that events were lost because the queue was full
  gap.kind = StoreEvent::Kind::kLost;
  gap.sequence = event == nullptr ? sequence : sequence - 1;
  if (gap.sequence > subscriber->seen) subscriber->callback(gap);
  subscriber->seen = sequence;
  if (event != nullptr) subscriber->callback(*event);
}

void EventHub::Run() {
  State& state = *state_;
  {
    absl::MutexLock lock(&state.mu);
    state.thread = std::this_thread::get_id();
  }
  const auto ready = [&state]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu) {
    return state.stopping || !state.queue.empty() || state.losing;
  };
  while (true) {
    SharedEvent event;
    std::vector<std::pair<std::shared_ptr<Subscriber>, uint64_t>> receivers;
    {
      absl::MutexLock lock(&state.mu);
      state.mu.Await(absl::Condition(&ready));
      if (!state.queue.empty()) {
        event = std::move(state.queue.front());
        state.queue.pop_front();
      } else if (!std::exchange(state.losing, false)) {
        return;  // the hub is stopping
      }
      for (const auto& subscriber : state.subscribers) {
        receivers.emplace_back(subscriber, state.sequences[subscriber->tenant]);
      }
    }
    for (const auto& [subscriber, posted] : receivers) {
      // Without an event, the queue is empty and the events up to `posted` were lost.
      Deliver(subscriber.get(), event != nullptr ? event->sequence : posted, event.get());
    }
  }
}

}  // namespace hearth
