#include "cache_store/event_hub.h"

#include <algorithm>
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

void EventHub::Post(StoreEvent::Kind kind, RestorePoint point) {
  absl::MutexLock lock(&state_->mu);
  const uint64_t sequence = ++state_->sequence;
  if (state_->subscribers.empty()) return;
  if (state_->queue.size() >= kMaxQueuedEvents) {
    counters_->Add(Counter::kEventsLost);
    for (const auto& subscriber : state_->subscribers) subscriber->lost = true;
    return;
  }
  state_->queue.push_back(StoreEvent{kind, sequence, std::move(point)});
}

std::shared_ptr<void> EventHub::Subscribe(const std::string& tenant,
                                          TieredStore::EventCallback callback) {
  auto subscriber = std::make_shared<Subscriber>();
  subscriber->tenant = tenant;
  subscriber->callback = std::move(callback);
  {
    absl::MutexLock lock(&state_->mu);
    state_->subscribers.push_back(subscriber);
  }
  const std::shared_ptr<State> state = state_;
  return std::shared_ptr<void>(subscriber.get(), [state, subscriber](void*) {
    bool inside_callback = false;
    {
      absl::MutexLock lock(&state->mu);
      auto& all = state->subscribers;
      all.erase(std::remove(all.begin(), all.end(), subscriber), all.end());
      inside_callback = state->thread == std::this_thread::get_id();
    }
    if (inside_callback) return;  // no longer listed: this was its last event
    absl::MutexLock lock(&subscriber->mu);
    subscriber->active = false;
  });
}

void EventHub::Deliver(Subscriber* subscriber, const StoreEvent& event, bool lost) {
  absl::MutexLock lock(&subscriber->mu);
  if (!subscriber->active) return;
  if (lost) {
    StoreEvent gap;
    gap.kind = StoreEvent::Kind::kLost;
    gap.sequence = event.sequence;
    subscriber->callback(gap);
  }
  if (event.restore_point.tenant == subscriber->tenant) subscriber->callback(event);
}

void EventHub::Run() {
  State& state = *state_;
  {
    absl::MutexLock lock(&state.mu);
    state.thread = std::this_thread::get_id();
  }
  const auto ready = [&state]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu) {
    return state.stopping || !state.queue.empty();
  };
  while (true) {
    StoreEvent event;
    std::vector<std::pair<std::shared_ptr<Subscriber>, bool>> receivers;
    {
      absl::MutexLock lock(&state.mu);
      state.mu.Await(absl::Condition(&ready));
      if (state.queue.empty()) return;
      event = std::move(state.queue.front());
      state.queue.pop_front();
      for (const auto& subscriber : state.subscribers) {
        receivers.emplace_back(subscriber, std::exchange(subscriber->lost, false));
      }
    }
    for (const auto& [subscriber, lost] : receivers) Deliver(subscriber.get(), event, lost);
  }
}

}  // namespace hearth
