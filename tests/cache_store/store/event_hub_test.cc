#include "cache_store/store/event_hub.h"

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

namespace hearth {
namespace {

RestorePoint PointOf(const std::string& tenant) {
  RestorePoint point;
  point.tenant = tenant;
  return point;
}

// A subscriber that collects events. If `hold` is set, its first callback blocks the hub's thread
// until the test releases it.
struct Watcher {
  absl::Mutex mu;
  std::vector<StoreEvent> events ABSL_GUARDED_BY(mu);
  absl::Notification* hold = nullptr;
  absl::Notification held;

  TieredStore::EventCallback Callback() {
    return [this](const StoreEvent& event) {
      bool first = false;
      {
        absl::MutexLock lock(&mu);
        first = events.empty();
        events.push_back(event);
      }
      if (first && hold != nullptr) {
        held.Notify();
        hold->WaitForNotification();
      }
    };
  }
  std::vector<StoreEvent> WaitFor(size_t count) {
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return events.size() >= count; };
    absl::MutexLock lock(&mu);
    mu.Await(absl::Condition(&enough));
    return events;
  }
};

TEST(EventHub, SequencesArePerTenant) {
  Counters counters;
  EventHub hub(&counters);
  Watcher watcher;
  const WatchStart start = hub.Subscribe("a", std::nullopt, watcher.Callback());
  EXPECT_EQ(start.sequence, 0u);
  for (int i = 0; i < 5; ++i) {
    hub.Post(StoreEvent::Kind::kStored, PointOf("b"));
    hub.Post(StoreEvent::Kind::kStored, PointOf("a"));
  }
  const std::vector<StoreEvent> events = watcher.WaitFor(5);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(events[i].sequence, i + 1);
}

TEST(EventHub, ResumeReturnsMissedEvents) {
  Counters counters;
  EventHub hub(&counters);
  for (int i = 0; i < 6; ++i) hub.Post(StoreEvent::Kind::kStored, PointOf("a"));
  hub.Post(StoreEvent::Kind::kStored, PointOf("b"));
  Watcher watcher;
  const WatchStart start = hub.Subscribe("a", 4, watcher.Callback());
  EXPECT_TRUE(start.resumed);
  EXPECT_EQ(start.sequence, 6u);
  ASSERT_EQ(start.missed.size(), 2u);
  EXPECT_EQ(start.missed[0].sequence, 5u);
  EXPECT_EQ(start.missed[1].sequence, 6u);
  hub.Post(StoreEvent::Kind::kPinned, PointOf("a"));
  EXPECT_EQ(watcher.WaitFor(1)[0].sequence, 7u);
}

TEST(EventHub, UnknownSequenceDoesNotResume) {
  Counters counters;
  EventHub hub(&counters);
  for (size_t i = 0; i <= EventHub::kMaxRecentEvents; ++i) {
    hub.Post(StoreEvent::Kind::kStored, PointOf("a"));
  }
  Watcher watcher;
  EXPECT_FALSE(hub.Subscribe("a", 0, watcher.Callback()).resumed) << "one too many";
  EXPECT_TRUE(hub.Subscribe("a", 1, watcher.Callback()).resumed);
  const WatchStart ahead = hub.Subscribe("a", EventHub::kMaxRecentEvents + 2, watcher.Callback());
  EXPECT_FALSE(ahead.resumed) << "another store's number";
  EXPECT_TRUE(ahead.missed.empty());
}

TEST(EventHub, QueueOverflowSendsOneLostEvent) {
  Counters counters;
  EventHub hub(&counters);
  absl::Notification go;
  Watcher watcher;
  watcher.hold = &go;
  const WatchStart start = hub.Subscribe("a", std::nullopt, watcher.Callback());
  hub.Post(StoreEvent::Kind::kStored, PointOf("a"));
  watcher.held.WaitForNotification();  // the hub's thread is now in the first callback
  constexpr size_t kLost = 3;
  for (size_t i = 0; i < EventHub::kMaxQueuedEvents + kLost; ++i) {
    hub.Post(StoreEvent::Kind::kStored, PointOf("a"));
  }
  go.Notify();
  // Expect the first event, all queued events, and one kLost, even if no further event is posted.
  const size_t expected = 1 + EventHub::kMaxQueuedEvents + 1;
  std::vector<StoreEvent> events = watcher.WaitFor(expected);
  ASSERT_EQ(events.size(), expected);
  for (size_t i = 0; i + 1 < expected; ++i) {
    EXPECT_EQ(events[i].kind, StoreEvent::Kind::kStored);
    ASSERT_EQ(events[i].sequence, i + 1);
  }
  EXPECT_EQ(events.back().kind, StoreEvent::Kind::kLost);
  EXPECT_EQ(events.back().sequence, 1 + EventHub::kMaxQueuedEvents + kLost);
  EXPECT_EQ(counters.Get(Counter::kEventsLost), kLost);
  hub.Post(StoreEvent::Kind::kStored, PointOf("a"));
  events = watcher.WaitFor(expected + 1);
  EXPECT_EQ(events.back().sequence, 2 + EventHub::kMaxQueuedEvents + kLost);
}

TEST(EventHub, SnapshotEventsAreNotRepeated) {
  Counters counters;
  EventHub hub(&counters);
  absl::Notification go;
  Watcher first, second;
  first.hold = &go;
  const WatchStart holding = hub.Subscribe("a", std::nullopt, first.Callback());
  hub.Post(StoreEvent::Kind::kStored, PointOf("a"));
  first.held.WaitForNotification();
  // these events stay in the queue
  for (int i = 0; i < 3; ++i) hub.Post(StoreEvent::Kind::kStored, PointOf("a"));
  const WatchStart start = hub.Subscribe("a", std::nullopt, second.Callback());
  EXPECT_EQ(start.sequence, 4u);
  hub.Post(StoreEvent::Kind::kDropped, PointOf("a"), Removal::kDropped);
  go.Notify();
  const std::vector<StoreEvent> events = second.WaitFor(1);
  EXPECT_EQ(events[0].sequence, 5u);
  EXPECT_EQ(events[0].removed, Removal::kDropped);
}

}  // namespace
}  // namespace hearth
