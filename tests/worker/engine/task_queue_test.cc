#include "worker/engine/task_queue.h"

#include <atomic>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace hearth {
namespace {

TEST(TaskQueueTest, RunsTasksInArrivalOrder) {
  std::vector<int> order;  // needs no lock: there is one thread
  TaskQueue queue(1, 8);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(queue.Submit([&order, i](TaskQueue::Fate) { order.push_back(i); }));
  }
  EXPECT_TRUE(queue.WaitIdle(absl::InfiniteFuture()));
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(TaskQueueTest, FullQueueRefusesTask) {
  absl::Notification busy, release;
  std::atomic<int> calls{0};
  TaskQueue queue(1, 1);
  ASSERT_TRUE(queue.Submit([&](TaskQueue::Fate) {
    busy.Notify();
    release.WaitForNotification();
  }));
  busy.WaitForNotification();
  EXPECT_TRUE(queue.Submit([&](TaskQueue::Fate) { ++calls; }));
  EXPECT_FALSE(queue.Submit([&](TaskQueue::Fate) { calls += 100; }));
  EXPECT_FALSE(queue.WaitIdle(absl::InfinitePast()));
  release.Notify();
  EXPECT_TRUE(queue.WaitIdle(absl::InfiniteFuture()));
  EXPECT_EQ(calls, 1);
}

TEST(TaskQueueTest, StopDropsWaitingTasks) {
  absl::Notification busy, release;
  std::vector<TaskQueue::Fate> fates(2, TaskQueue::Fate::kRun);
  TaskQueue queue(1, 2);
  queue.Submit([&](TaskQueue::Fate fate) {
    busy.Notify();
    release.WaitForNotification();
    fates[0] = fate;
  });
  queue.Submit([&](TaskQueue::Fate fate) {
    fates[1] = fate;
    release.Notify();  // lets the first task end, but only after this task was dropped
  });
  busy.WaitForNotification();
  queue.Stop();
  EXPECT_EQ(fates[0], TaskQueue::Fate::kRun);
  EXPECT_EQ(fates[1], TaskQueue::Fate::kDrop);
  EXPECT_FALSE(queue.Submit([](TaskQueue::Fate) {}));
}

}  // namespace
}  // namespace hearth
