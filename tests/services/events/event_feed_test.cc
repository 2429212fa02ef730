#include "services/events/event_feed.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/strings/match.h"
#include "nlohmann/json.hpp"

namespace hearth {
namespace {

using Value = nlohmann::json;
using Kind = v1::WatchEvent;

constexpr uint32_t kChunkTokens = 16;
const absl::Time kNow = absl::FromUnixMicros(1000000);

class EventFeedTest : public ::testing::Test {
 protected:
  explicit EventFeedTest(const EventFeedOptions& options = {}) : feed_(options, kNow) {
    feed_.OnBatches([this] { ++woken_; });
  }

  static v1::WatchEvent Plain(Kind::Kind kind) {
    v1::WatchEvent event;
    event.set_kind(kind);
    event.set_incarnation(7);
    return event;
  }
  // Chunks `begin` to `end` of a prompt that `seed` numbers; `chunks` in all.
  static v1::WatchEvent Point(Kind::Kind kind, uint64_t seed, uint32_t chunks, uint32_t begin = 0,
                              uint32_t end = 0) {
    v1::WatchEvent event = Plain(kind);
    if (kind != Kind::CHUNKS) {
      v1::RestorePointInfo* point = event.mutable_restore_point();
      point->set_restore_point_id("point " + std::to_string(seed));
      point->set_fingerprint_digest(std::string("\x3f\xa9", 2));
      point->set_tokens(chunks * kChunkTokens);
    }
    if (kind == Kind::EVICTED || kind == Kind::DROPPED) return event;
    v1::ChunkRun* run = event.mutable_chunks();
    run->set_chunk_tokens(kChunkTokens);
    run->set_first_chunk(begin);
    for (uint32_t i = begin; i < (end == 0 ? chunks : end); ++i) {
      run->add_chunk_ids(seed * 1000 + i);
      for (uint32_t j = 0; j < kChunkTokens; ++j) run->add_token_ids(i);
    }
    return event;
  }
  static v1::WatchEvent OfOther(v1::WatchEvent event) {
    event.mutable_restore_point()->set_fingerprint_digest("other");
    return event;
  }
  bool Take(v1::WatchEvent event, uint64_t sequence = 0) {
    event.set_sequence(sequence);
    return feed_.Take(event, kNow);
  }
  void Watch(const std::vector<v1::WatchEvent>& snapshot, uint64_t sequence) {
    feed_.BeginWatch();
    Take(Plain(Kind::START), sequence);
    for (const v1::WatchEvent& event : snapshot) Take(event, sequence);
    Take(Plain(Kind::SNAPSHOT_END), sequence);
  }
  // All events since the last call.
  std::vector<Value> Told() {
    std::vector<Value> events;
    for (const KvBatch& batch : feed_.From(read_, 1000)) {
      EXPECT_EQ(batch.number, read_++);
      const Value decoded = Value::from_msgpack(*batch.payload);
      events.insert(events.end(), decoded[1].begin(), decoded[1].end());
    }
    return events;
  }

  EventFeed feed_;
  uint64_t read_ = 1000000;
  int woken_ = 0;
};

TEST_F(EventFeedTest, BeginsWithAllCleared) {
  const std::vector<Value> told = Told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0], Value::array({"AllBlocksCleared"}));
  EXPECT_EQ(feed_.place().incarnation, 0u);
}

TEST_F(EventFeedTest, TheSnapshotIsToldAndThenEachChange) {
  Told();
  Watch({Point(Kind::SNAPSHOT, 1, 3)}, 5);
  std::vector<Value> told = Told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0][0], "BlockStored");
  EXPECT_EQ(told[0][1], (std::vector<uint64_t>{1000, 1001, 1002}));
  EXPECT_TRUE(told[0][2].is_null());
  EXPECT_EQ(told[0][3].size(), 3 * kChunkTokens);
  EXPECT_EQ(told[0][4], kChunkTokens);
  EXPECT_EQ(feed_.place().sequence, 5u);
  EXPECT_EQ(woken_, 1);

  Take(Point(Kind::STORED, 2, 1), 6);
  Take(Plain(Kind::DURABLE), 7);
  Take(Point(Kind::EVICTED, 1, 3), 8);
  told = Told();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0][1], std::vector<uint64_t>{2000});
  EXPECT_EQ(told[1][0], "BlockRemoved");
  EXPECT_EQ(told[1][1], (std::vector<uint64_t>{1002, 1001, 1000}));
  EXPECT_EQ(feed_.place().sequence, 8u);
}

TEST_F(EventFeedTest, AStoreThatComesBackWithOthersIsToldAsTheDifference) {
  Watch({Point(Kind::SNAPSHOT, 1, 1), Point(Kind::SNAPSHOT, 2, 1)}, 5);
  Told();
  Watch({Point(Kind::SNAPSHOT, 2, 1), Point(Kind::SNAPSHOT, 3, 1)}, 1);
  const std::vector<Value> told = Told();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0][1], std::vector<uint64_t>{3000});
  EXPECT_EQ(told[1][1], std::vector<uint64_t>{1000});
}

TEST_F(EventFeedTest, AWatchThatGoesOnLosesNothingAtItsBeginning) {
  Watch({Point(Kind::SNAPSHOT, 1, 3)}, 5);
  Told();
  feed_.BeginWatch();
  v1::WatchEvent start = Plain(Kind::START);
  start.set_resumed(true);
  Take(start, 5);
  Take(Point(Kind::STORED, 2, 1), 6);  // missed meanwhile
  Take(Plain(Kind::SNAPSHOT_END), 6);
  const std::vector<Value> told = Told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0][1], std::vector<uint64_t>{2000});
  EXPECT_EQ(feed_.figures().points, 2u);
}

TEST_F(EventFeedTest, APointThatCameInPiecesIsToldOnceItIsWhole) {
  Watch({}, 5);
  Told();
  Take(Point(Kind::STORED, 1, 5, 0, 2), 6);
  Take(Point(Kind::CHUNKS, 1, 5, 2, 4), 6);
  EXPECT_TRUE(Told().empty());
  EXPECT_EQ(feed_.place().sequence, 5u) << "cut off here, it has to come again";
  Take(Point(Kind::CHUNKS, 1, 5, 4, 5), 6);
  ASSERT_EQ(Told().size(), 1u);
  EXPECT_EQ(feed_.place().sequence, 6u);

  Take(Point(Kind::STORED, 2, 5, 0, 2), 7);
  Take(Point(Kind::DROPPED, 2, 5), 8);  // it left before all of it was sent
  Take(Point(Kind::CHUNKS, 2, 5, 2, 5), 8);
  EXPECT_TRUE(Told().empty());
  EXPECT_EQ(feed_.place().sequence, 8u);
}

TEST_F(EventFeedTest, PiecesThatDoNotFitAreLeftOut) {
  Watch({}, 5);
  Told();
  Take(Point(Kind::STORED, 1, 5, 0, 2), 6);
  Take(Point(Kind::CHUNKS, 1, 5, 3, 5), 6);  // a gap
  Take(Point(Kind::STORED, 2, 2, 0, 3), 7);  // more than it has
  v1::WatchEvent uneven = Point(Kind::STORED, 3, 2);
  uneven.mutable_chunks()->mutable_token_ids()->RemoveLast();
  Take(uneven, 8);
  v1::WatchEvent bare = Point(Kind::STORED, 4, 2);
  bare.clear_chunks();  // it ends inside a chunk
  Take(bare, 9);
  EXPECT_TRUE(Told().empty());
  EXPECT_EQ(feed_.figures().blocks, 0u);
  EXPECT_EQ(feed_.figures().left_out, 2u);
}

TEST_F(EventFeedTest, AfterALossTheWatchBeginsAnew) {
  Watch({Point(Kind::SNAPSHOT, 1, 1)}, 5);
  EXPECT_FALSE(Take(Plain(Kind::LOST), 90));
  EXPECT_EQ(feed_.place().incarnation, 0u);
}

TEST_F(EventFeedTest, OtherFingerprintsAreNotTold) {
  Watch({Point(Kind::SNAPSHOT, 1, 1)}, 5);
  Told();
  Take(OfOther(Point(Kind::STORED, 2, 1)), 6);
  EXPECT_TRUE(Told().empty());
  EXPECT_EQ(feed_.figures().of_others, 1u);
}

TEST_F(EventFeedTest, AnotherFingerprintAfterTheSnapshotIsNotedOnce) {
  Watch({Point(Kind::SNAPSHOT, 1, 1), OfOther(Point(Kind::SNAPSHOT, 2, 1))}, 5);
  EXPECT_EQ(feed_.TakeNotice(), "") << "the figures of a snapshot say so";
  Take(OfOther(Point(Kind::STORED, 3, 1)), 6);
  const std::string notice = feed_.TakeNotice();
  EXPECT_TRUE(absl::StrContains(notice, "6f74686572")) << notice;
  EXPECT_TRUE(absl::StrContains(notice, "3fa9")) << notice;
  EXPECT_TRUE(absl::StrContains(notice, "--fingerprint")) << notice;
  Take(OfOther(Point(Kind::STORED, 4, 1)), 7);
  EXPECT_EQ(feed_.TakeNotice(), "");
}

TEST_F(EventFeedTest, OnceNoneIsLeftTheNextFingerprintIsTold) {
  Watch({Point(Kind::SNAPSHOT, 1, 1)}, 5);
  EXPECT_TRUE(Take(Point(Kind::EVICTED, 1, 1), 6));
  Told();
  EXPECT_TRUE(Take(OfOther(Point(Kind::STORED, 2, 1)), 7));
  const std::vector<Value> told = Told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0][1], std::vector<uint64_t>{2000});
  EXPECT_EQ(feed_.figures().of_others, 0u);
}

TEST_F(EventFeedTest, OnceNoneIsLeftThoseThatWerePassedOverAreWatchedAnew) {
  Watch({Point(Kind::SNAPSHOT, 1, 1)}, 5);
  EXPECT_TRUE(Take(OfOther(Point(Kind::STORED, 2, 1)), 6));
  Told();
  EXPECT_FALSE(Take(Point(Kind::EVICTED, 1, 1), 7));
  EXPECT_EQ(feed_.place().incarnation, 0u);
  EXPECT_EQ(Told().size(), 1u) << "removed all the same";
  Watch({OfOther(Point(Kind::SNAPSHOT, 2, 1))}, 7);
  const std::vector<Value> told = Told();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0][1], std::vector<uint64_t>{2000});
  EXPECT_TRUE(Take(OfOther(Point(Kind::EVICTED, 2, 1)), 8)) << "nothing was passed over";
}

TEST_F(EventFeedTest, ASnapshotOfOthersAloneIsWatchedAnew) {
  Watch({Point(Kind::SNAPSHOT, 1, 1)}, 5);
  feed_.BeginWatch();
  Take(Plain(Kind::START), 1);
  EXPECT_TRUE(Take(OfOther(Point(Kind::SNAPSHOT, 2, 1)), 1));
  EXPECT_FALSE(Take(Plain(Kind::SNAPSHOT_END), 1));
  Watch({OfOther(Point(Kind::SNAPSHOT, 2, 1))}, 1);
  EXPECT_EQ(feed_.figures().points, 1u);
}

TEST_F(EventFeedTest, TheFingerprintAskedForIsTheOneThatIsTold) {
  EventFeedOptions options;
  options.fingerprint = "3fa9";
  EventFeed feed(options, kNow);
  feed.Take(OfOther(Point(Kind::STORED, 2, 1)), kNow);
  EXPECT_TRUE(absl::StrContains(feed.TakeNotice(), "reported are those of 3fa9"));
  feed.Take(Point(Kind::STORED, 1, 1), kNow);
  EXPECT_EQ(feed.figures().points, 1u);
  EXPECT_EQ(feed.figures().of_others, 1u);
  EXPECT_TRUE(feed.Take(Point(Kind::EVICTED, 1, 1), kNow));
  feed.Take(OfOther(Point(Kind::STORED, 2, 1)), kNow);
  EXPECT_EQ(feed.figures().points, 0u) << "none is left, and still no other is asked for";
}

TEST_F(EventFeedTest, ARequestForKeptBatchesGetsThem) {
  Watch({Point(Kind::SNAPSHOT, 1, 1)}, 5);
  Take(Point(Kind::STORED, 2, 1), 6);
  const std::vector<KvBatch> missed = feed_.Replay(1000001, kNow);
  ASSERT_EQ(missed.size(), 2u);
  EXPECT_EQ(missed[0].number, 1000001u);
  EXPECT_TRUE(feed_.Replay(1000003, kNow).empty());
}

class SmallEventFeedTest : public EventFeedTest {
 protected:
  SmallEventFeedTest() : EventFeedTest(Small()) {}
  static EventFeedOptions Small() {
    EventFeedOptions options;
    options.max_batches = 2;
    return options;
  }
};

TEST_F(SmallEventFeedTest, ARequestForMoreThanIsKeptGetsEverythingAnew) {
  Watch({Point(Kind::SNAPSHOT, 1, 2)}, 5);
  for (uint64_t i = 2; i < 6; ++i) Take(Point(Kind::STORED, i, 1), i + 4);
  Take(Point(Kind::EVICTED, 3, 1), 10);
  for (const uint64_t number : {uint64_t{0}, uint64_t{1000002}}) {
    const std::vector<KvBatch> all = feed_.Replay(number, kNow);
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].number, feed_.next_number() - 1) << "then they go on with the next";
    const Value events = Value::from_msgpack(*all[0].payload)[1];
    ASSERT_EQ(events.size(), 5u);
    EXPECT_EQ(events[0][0], "AllBlocksCleared");
    size_t blocks = 0;
    for (size_t i = 1; i < events.size(); ++i) blocks += events[i][1].size();
    EXPECT_EQ(blocks, 5u);
  }
  const KvBatch once = feed_.Replay(0, kNow).at(0);
  EXPECT_EQ(feed_.Replay(0, kNow).at(0).payload, once.payload) << "made once for all who ask";
  Take(Point(Kind::STORED, 9, 1), 11);
  EXPECT_NE(feed_.Replay(0, kNow).at(0).payload, once.payload);
}

// Knows what a router does that takes each number once.
class Reader {
 public:
  void Take(const std::vector<KvBatch>& batches) {
    for (const KvBatch& batch : batches) {
      if (batch.number < next_) continue;
      next_ = batch.number + 1;
      const Value decoded = Value::from_msgpack(*batch.payload);
      for (const Value& event : decoded[1]) Apply(event);
    }
  }
  uint64_t next() const { return next_; }
  const std::set<uint64_t>& blocks() const { return blocks_; }

 private:
  void Apply(const Value& event) {
    if (event[0] == "AllBlocksCleared") return blocks_.clear();
    for (const Value& id : event[1]) {
      if (event[0] == "BlockStored") blocks_.insert(id.get<uint64_t>());
      if (event[0] == "BlockRemoved") blocks_.erase(id.get<uint64_t>());
    }
  }

  uint64_t next_ = 0;
  std::set<uint64_t> blocks_;
};

class TinyEventFeedTest : public EventFeedTest {
 protected:
  static constexpr uint32_t kBatchChunks = kMaxBatchTokens / kChunkTokens;
  TinyEventFeedTest() : EventFeedTest(Tiny()) {
    // Six restore points that fill a batch each. A point's chunks take up the next one's numbers.
    for (uint64_t seed = 2; seed <= 12; seed += 2) {
      Take(Point(Kind::STORED, seed, kBatchChunks), seed);
      here_.Take(feed_.From(here_.next(), 1000));
    }
  }
  static EventFeedOptions Tiny() {
    EventFeedOptions options;
    options.max_batches = 1;
    return options;
  }
  // Two batches that are not kept both.
  void EvictTwo() {
    Take(Point(Kind::EVICTED, 2, kBatchChunks), 20);
    Take(Point(Kind::EVICTED, 4, kBatchChunks), 21);
  }

  Reader here_;  // has all batches so far
};

TEST_F(TinyEventFeedTest, AReaderThatMissedFewBatchesGetsEverythingUnderNumbersThatItLacks) {
  EvictTwo();
  const uint64_t missed = here_.next();
  const std::vector<KvBatch> all = feed_.Replay(missed, kNow);
  ASSERT_GT(all.size(), 2u) << "more batches than it missed";
  EXPECT_EQ(all.front().number, missed);
  EXPECT_EQ(all.back().number + 1, feed_.next_number());
  here_.Take(all);
  EXPECT_EQ(here_.blocks().size(), 4 * kBatchChunks);
  EXPECT_EQ(here_.blocks().count(2000), 0u);
  EXPECT_EQ(here_.blocks().count(12000), 1u);
}

TEST_F(TinyEventFeedTest, TheOthersGetNumbersWithoutEventsOnce) {
  EvictTwo();
  Reader other;
  other.Take(feed_.From(0, 1000));
  const uint64_t before = feed_.next_number();
  woken_ = 0;
  feed_.Replay(here_.next(), kNow);
  EXPECT_EQ(woken_, 1);
  read_ = before;
  EXPECT_TRUE(Told().empty());
  EXPECT_EQ(read_, feed_.next_number()) << "without a gap";
  EXPECT_GT(read_, before);
  const uint64_t after = feed_.next_number();
  for (uint64_t number = before - 10; number <= after; ++number) feed_.Replay(number, kNow);
  EXPECT_EQ(feed_.next_number(), after) << "however often somebody asks";
  EXPECT_EQ(woken_, 1);
}

}  // namespace
}  // namespace hearth
