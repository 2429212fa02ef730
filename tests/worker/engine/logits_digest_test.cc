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
    absl::Notification room;
    if (!digest->AwaitRoom([&] { room.Notify(); })) room.WaitForNotification();
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

// A queue whose one thread does nothing until it is told to.
class LogitsDigestQueueTest : public ::testing::Test {
 protected:
  LogitsDigestQueueTest() {
    queue_.Submit([this](TaskQueue::Fate) {
      busy_.Notify();
      release_.WaitForNotification();
    });
    busy_.WaitForNotification();
  }

  std::shared_ptr<LogitsDigest> WithRows(int rows) {
    auto digest = std::make_shared<LogitsDigest>(&queue_, /*all=*/true);
    for (int i = 0; i < rows; ++i) {
      std::vector<float> row = RowNumber(i);
      digest->Add(&row);
      EXPECT_TRUE(row.empty());
    }
    return digest;
  }

  absl::Notification busy_, release_;
  TaskQueue queue_{1, 4};
};

TEST_F(LogitsDigestQueueTest, TellsWhoHasNoRoomWhenThereIsSome) {
  const auto digest = WithRows(LogitsDigest::kMaxWaitingRows - 1);
  EXPECT_TRUE(digest->AwaitRoom(nullptr));
  std::vector<float> row = RowNumber(1);
  digest->Add(&row);
  absl::Notification room;
  EXPECT_FALSE(digest->AwaitRoom([&] { room.Notify(); }));
  EXPECT_FALSE(room.HasBeenNotified());
  release_.Notify();
  room.WaitForNotification();
  EXPECT_TRUE(digest->AwaitRoom(nullptr));
}

// The rows of a step that guessed, of which one after the other is hashed.
TEST_F(LogitsDigestQueueTest, RoomIsToldOfOnceAllThatAStepMayGiveFits) {
  const auto digest = WithRows(LogitsDigest::kMaxWaitingRows - 1 + LogitsDigest::kMaxStepRows);
  bool room = false;
  absl::Notification told;
  EXPECT_FALSE(digest->AwaitRoom([&] {
    room = digest->AwaitRoom(nullptr);
    told.Notify();
  }));
  release_.Notify();
  told.WaitForNotification();
  EXPECT_TRUE(room);
}

TEST_F(LogitsDigestQueueTest, AnswersTakeTurns) {
  const auto longer = WithRows(2), shorter = WithRows(1);
  std::string order;
  absl::Notification done;
  longer->Finish([&](const LogitsDigest::Digests& digests) {
    EXPECT_EQ(digests.all, Sha256(BytesOfRows(2)));
    order += "longer";
    done.Notify();
  });
  shorter->Finish([&](const LogitsDigest::Digests&) { order += "shorter "; });
  release_.Notify();
  done.WaitForNotification();
  EXPECT_EQ(order, "shorter longer");
}

TEST_F(LogitsDigestQueueTest, WhatWaitsWhenTheQueueStopsIsMadeAllTheSame) {
  Digest all;
  WithRows(2)->Finish([&](const LogitsDigest::Digests& digests) {
    all = digests.all;
    release_.Notify();
  });
  queue_.Stop();
  EXPECT_EQ(all, Sha256(BytesOfRows(2)));
}

}  // namespace
}  // namespace hearth
