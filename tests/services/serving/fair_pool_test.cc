#include "services/serving/calls/fair_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;

FairPoolOptions Small(int threads, size_t max_waiting = 64) {
  FairPoolOptions options;
  options.threads = threads;
  options.max_waiting = max_waiting;
  return options;
}

// A job that blocks its thread until LetGo.
class BlockingJob {
 public:
  FairPool::Job job() {
    return [this] {
      begun_.Notify();
      may_end_.WaitForNotification();
    };
  }
  void WaitBegun() { begun_.WaitForNotification(); }
  void LetGo() { may_end_.Notify(); }
  bool begun() const { return begun_.HasBeenNotified(); }

 private:
  absl::Notification begun_, may_end_;
};

TEST(FairPool, LastQueueSlotIsForNewTenant) {
  BlockingJob a, b;
  FairPool pool("prompts", Small(2, /*max_waiting=*/4));
  ASSERT_TRUE(pool.Submit("a", 1, a.job()).ok());
  a.WaitBegun();
  ASSERT_TRUE(pool.Submit("b", 1, b.job()).ok());
  b.WaitBegun();
  for (const char* tenant : {"a", "a", "b"}) EXPECT_TRUE(pool.Submit(tenant, 1, [] {}).ok());
  EXPECT_FALSE(pool.Submit("b", 1, [] {}).ok());
  EXPECT_TRUE(pool.Submit("c", 1, [] {}).ok());
  a.LetGo();
  b.LetGo();
}

TEST(FairPool, EmptyRequestRunsAtOnce) {
  FairPoolOptions options = Small(2);
  options.max_waiting = 0;
  FairPool pool("prompts", options);
  bool ran = false;
  EXPECT_TRUE(pool.SubmitRequest("a", 0, [&ran] { ran = true; }).ok());
  EXPECT_TRUE(ran);
  EXPECT_FALSE(pool.SubmitRequest("a", 1, [] {}).ok());
}

TEST(FairPool, ContinuationRunsBeforeQueuedJobs) {
  absl::Mutex mutex;
  std::vector<std::string> order;
  const auto job = [&](const char* name) {
    return [&, name] {
      absl::MutexLock lock(&mutex);
      order.push_back(name);
    };
  };
  {
    BlockingJob first;
    FairPool pool("prompts", Small(2, /*max_waiting=*/2));
    ASSERT_TRUE(pool.Submit("a", 1, first.job()).ok());
    first.WaitBegun();
    ASSERT_TRUE(pool.Submit("a", 1, job("begins")).ok());
    EXPECT_FALSE(pool.Submit("a", 1, job("refused")).ok());
    pool.Continue("a", job("continues"));
    first.LetGo();
  }
  EXPECT_THAT(order, ElementsAre("continues", "begins"));
}

TEST(FairPool, LoneTenantGetsHalfTheThreads) {
  BlockingJob first, second, third;
  absl::Notification other;
  FairPool pool("prompts", Small(4));
  ASSERT_TRUE(pool.Submit("a", 0, first.job()).ok());
  ASSERT_TRUE(pool.Submit("a", 0, second.job()).ok());
  ASSERT_TRUE(pool.Submit("a", 0, third.job()).ok());
  first.WaitBegun();
  second.WaitBegun();
  // The job of another tenant runs, although the first tenant has its share and has jobs waiting.
  ASSERT_TRUE(pool.Submit("b", 0, [&other] { other.Notify(); }).ok());
  other.WaitForNotification();
  EXPECT_FALSE(third.begun());
  first.LetGo();
  third.WaitBegun();
  second.LetGo();
  third.LetGo();
}

// If one tenant submits 85 jobs, the jobs of two other tenants are still accepted.
TEST(FairPool, BusyTenantLeavesQueueSlots) {
  std::vector<BlockingJob> blocking(6);
  FairPool pool("prompts");
  for (size_t i = 0; i < blocking.size(); ++i) {
    ASSERT_TRUE(pool.Submit(std::string(1, static_cast<char>('a' + i)), 0, blocking[i].job()).ok());
  }
  for (BlockingJob& job : blocking) job.WaitBegun();
  for (int i = 0; i < 85; ++i) EXPECT_TRUE(pool.Submit("loud", 100, [] {}).ok()) << i;
  for (int i = 0; i < 16; ++i) {
    EXPECT_TRUE(pool.Submit("b", 100, [] {}).ok()) << i;
    EXPECT_TRUE(pool.Submit("c", 100, [] {}).ok()) << i;
  }
  for (BlockingJob& job : blocking) job.LetGo();
}

TEST(FairPool, TenantsTakeTurns) {
  std::vector<std::string> order;
  BlockingJob of_a, of_b;
  absl::Mutex mutex;
  {
    FairPool pool("prompts", Small(2));
    ASSERT_TRUE(pool.Submit("a", 0, of_a.job()).ok());
    ASSERT_TRUE(pool.Submit("b", 0, of_b.job()).ok());
    of_a.WaitBegun();
    of_b.WaitBegun();
    absl::BlockingCounter noted(5);
    const auto note = [&](const std::string& tenant) {
      return [&order, &mutex, &noted, tenant] {
        {
          absl::MutexLock lock(&mutex);
          order.push_back(tenant);
        }
        noted.DecrementCount();
      };
    };
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(pool.Submit("c", 0, note("c")).ok());
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(pool.Submit("d", 0, note("d")).ok());
    of_a.LetGo();  // one thread remains for tenants c and d
    noted.Wait();
    of_b.LetGo();
  }
  absl::MutexLock lock(&mutex);
  EXPECT_THAT(order, ElementsAre("c", "d", "c", "d", "c"));
}

TEST(FairPool, TooManyJobsErrorNamesLimit) {
  BlockingJob of_a, of_b;
  FairPool pool("prompts", Small(2, /*max_waiting=*/4));
  ASSERT_TRUE(pool.Submit("a", 0, of_a.job()).ok());
  ASSERT_TRUE(pool.Submit("b", 0, of_b.job()).ok());
  of_a.WaitBegun();
  of_b.WaitBegun();
  const auto nothing = [] {};
  EXPECT_TRUE(pool.Submit("a", 0, nothing).ok());
  EXPECT_TRUE(pool.Submit("a", 0, nothing).ok());
  const absl::Status each = pool.Submit("a", 0, nothing);
  EXPECT_EQ(each.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(each.message(), "prompts: tenant \"a\" has 2 waiting requests"))
      << each;
  EXPECT_TRUE(pool.Submit("c", 0, nothing).ok());
  EXPECT_TRUE(pool.Submit("d", 0, nothing).ok());
  const absl::Status all = pool.Submit("e", 0, nothing);
  EXPECT_EQ(all.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(all.message(), "prompts: 4 requests wait")) << all;
  of_a.LetGo();
  of_b.LetGo();
}

TEST(FairPool, TooManyBytesErrorNamesLimit) {
  BlockingJob large, of_b;
  FairPoolOptions options = Small(4);
  options.max_bytes = 150;
  FairPool pool("prompts", options);
  const auto nothing = [] {};
  ASSERT_TRUE(pool.Submit("a", 120, large.job()).ok()) << "alone";
  const absl::Status each = pool.Submit("a", 1, nothing);
  EXPECT_TRUE(
      absl::StrContains(each.message(), "prompts: tenant \"a\" has 120 bytes of waiting requests"))
      << each;
  ASSERT_TRUE(pool.Submit("b", 30, of_b.job()).ok());
  const absl::Status all = pool.Submit("c", 1, nothing);
  EXPECT_TRUE(absl::StrContains(all.message(), "prompts: waiting requests hold 150 bytes")) << all;
  large.LetGo();
  of_b.LetGo();
}

TEST(FairPool, DestructionRunsAcceptedJobs) {
  int runs = 0;
  {
    BlockingJob blocking;
    FairPool pool("prompts", Small(2));
    ASSERT_TRUE(pool.Submit("a", 0, blocking.job()).ok());
    blocking.WaitBegun();
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(pool.Submit("a", 0, [&runs] { ++runs; }).ok());
    blocking.LetGo();
  }
  EXPECT_EQ(runs, 5);
}

}  // namespace
}  // namespace hearth
