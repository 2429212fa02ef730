#include "worker/engine/logits_digest.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace hearth {
namespace {

std::vector<float> RowNumber(int number) { return std::vector<float>(100, 0.5F * number); }

std::string BytesOfRows(int rows) {
  std::string bytes;
  for (int i = 0; i < rows; ++i) {
    const std::vector<float> row = RowNumber(i);
    bytes.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(float));
  }
  return bytes;
}

LogitsDigest::Digests DigestsOf(TaskQueue* queue, bool all, int rows) {
  auto digest = std::make_shared<LogitsDigest>(queue, all);
  for (int i = 0; i < rows; ++i) {
    std::vector<float> row = RowNumber(i);
    digest->Add(&row);
  }
  LogitsDigest::Digests made;
  absl::Notification done;
  digest->Finish([&](const LogitsDigest::Digests& digests) {
    made = digests;
    done.Notify();
  });
  done.WaitForNotification();
  return made;
}

TEST(LogitsDigestTest, IsOfAllRowsInOrderOrOfTheFirst) {
  TaskQueue queue(2, 1);
  for (const int rows : {1, 2, 100}) {
    const LogitsDigest::Digests made = DigestsOf(&queue, /*all=*/true, rows);
    EXPECT_EQ(made.first, Sha256(BytesOfRows(1)));
    EXPECT_EQ(made.all, Sha256(BytesOfRows(rows)));
    EXPECT_EQ(DigestsOf(&queue, /*all=*/false, rows).first, made.first);
    EXPECT_EQ(DigestsOf(&queue, /*all=*/false, rows).all, Digest{});
  }
  EXPECT_EQ(DigestsOf(&queue, /*all=*/true, 0).all, Digest{});
}

TEST(LogitsDigestTest, IsMadeHereWhereNoThreadTakesIt) {
  TaskQueue stopped(1, 1);
  stopped.Stop();
  EXPECT_EQ(DigestsOf(&stopped, /*all=*/true, 20).all, Sha256(BytesOfRows(20)));
}

TEST(LogitsDigestTest, WhatWaitsWhenTheQueueStopsIsMadeAllTheSame) {
  TaskQueue queue(1, 4);
  absl::Notification busy, release;
  queue.Submit([&](TaskQueue::Fate) {
    busy.Notify();
    release.WaitForNotification();
  });
  busy.WaitForNotification();
  auto digest = std::make_shared<LogitsDigest>(&queue, /*all=*/true);
  for (int i = 0; i < 3; ++i) {
    std::vector<float> row = RowNumber(i);
    digest->Add(&row);
    EXPECT_TRUE(row.empty());
  }
  Digest all;
  digest->Finish([&](const LogitsDigest::Digests& digests) {
    all = digests.all;
    release.Notify();
  });
  queue.Stop();
  EXPECT_EQ(all, Sha256(BytesOfRows(3)));
}

}  // namespace
}  // namespace hearth
