// Watch over gRPC: a snapshot of the store, then every change; and a watch that resumes.
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "cache_store/store/event_hub.h"
#include "services/store/store_calls.h"
#include "tests/services/store/store_server.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

class StoreWatchTest : public ::testing::Test {
 protected:
  explicit StoreWatchTest(const std::string& data_dir = "")
      : server_(StoreServer::SmallStore(data_dir)) {}

  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::WatchEvent>> reader;
    ~Stream() {
      context.TryCancel();
      reader->Finish();
    }
    v1::WatchEvent Next() {
      v1::WatchEvent event;
      EXPECT_TRUE(reader->Read(&event));
      return event;
    }
  };

  std::unique_ptr<Stream> Watch(const v1::WatchRequest& request = {}) {
    auto stream = std::make_unique<Stream>();
    stream->reader = server_.stub()->Watch(&stream->context, request);
    return stream;
  }
  void Publish(uint64_t seed, Durability durability = Durability::kDefault) {
    const KitPrompt prompt{KitTokens(seed, 33), {}};
    const auto result = KitPublish(server_.store(), model_, prompt, {32}, durability);
    ASSERT_TRUE(result.ok()) << result.status();
  }
  Digest LatestId() { return server_.store()->List("default").at(0).id; }

  StoreServer server_;
  const Fingerprint model_ = KitModel().Make();
};

struct DataFolder {
  const TestFolder folder_;
};
class StoreWatchOnDiskTest : private DataFolder, public StoreWatchTest {
 protected:
  StoreWatchOnDiskTest() : StoreWatchTest(folder_.path()) {}

  // Returns the restore point as text, without the time of its last use.
  static std::string RecordOf(v1::RestorePointInfo point) {
    point.clear_age_s();
    return point.DebugString();
  }
  std::map<std::string, std::string> Listed() {
    grpc::ClientContext context;
    const auto reader = server_.stub()->List(&context, {});
    std::map<std::string, std::string> listed;
    v1::RestorePointInfo point;
    while (reader->Read(&point)) listed[point.restore_point_id()] = RecordOf(point);
    EXPECT_TRUE(reader->Finish().ok());
    return listed;
  }
};

TEST_F(StoreWatchTest, EmptyStoreSendsEmptySnapshot) {
  const auto stream = Watch();
  const v1::WatchEvent start = stream->Next();
  EXPECT_EQ(start.kind(), v1::WatchEvent::START);
  EXPECT_NE(start.incarnation(), 0u);
  EXPECT_EQ(start.sequence(), 0u);
  const v1::WatchEvent end = stream->Next();
  EXPECT_EQ(end.kind(), v1::WatchEvent::SNAPSHOT_END);
  EXPECT_EQ(end.incarnation(), start.incarnation());
  EXPECT_FALSE(end.has_restore_point());
}

TEST_F(StoreWatchTest, ChangesFollowSnapshotWithoutGap) {
  for (uint64_t seed = 1; seed <= 3; ++seed) Publish(seed);
  ASSERT_TRUE(server_.store()->SetPinned(LatestId(), "default", true).ok());
  const auto stream = Watch();
  EXPECT_EQ(stream->Next().sequence(), 4u);
  for (int i = 0; i < 3; ++i) {
    const v1::WatchEvent stored = stream->Next();
    EXPECT_EQ(stored.kind(), v1::WatchEvent::SNAPSHOT);
    EXPECT_EQ(stored.sequence(), 4u);
    EXPECT_EQ(stored.restore_point().tokens(), 32u);
    EXPECT_EQ(stored.restore_point().pinned(), i == 0) << "most recently used first";
  }
  EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::SNAPSHOT_END);
  const Digest id = LatestId();
  Publish(4);
  ASSERT_TRUE(server_.store()->SetPinned(id, "default", false).ok());
  ASSERT_TRUE(server_.store()->Drop(id, "default", false).ok());
  const v1::WatchEvent::Kind expected[] = {v1::WatchEvent::STORED, v1::WatchEvent::UNPINNED,
                                           v1::WatchEvent::DROPPED};
  for (int i = 0; i < 3; ++i) {
    const v1::WatchEvent event = stream->Next();
    EXPECT_EQ(event.kind(), expected[i]);
    EXPECT_EQ(event.sequence(), 5u + i);
    EXPECT_EQ(event.reason(), i == 2 ? "dropped" : "");
  }
}

TEST_F(StoreWatchTest, LargeSnapshotArrivesWhole) {
  constexpr uint64_t kPoints = kMaxWatchQueue + 100;
  for (uint64_t seed = 1; seed <= kPoints; ++seed) Publish(seed);
  const auto stream = Watch();
  EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::START);
  std::map<std::string, int> seen;
  v1::WatchEvent event = stream->Next();
  for (; event.kind() == v1::WatchEvent::SNAPSHOT; event = stream->Next()) {
    ++seen[event.restore_point().restore_point_id()];
  }
  EXPECT_EQ(event.kind(), v1::WatchEvent::SNAPSHOT_END);
  EXPECT_EQ(seen.size(), kPoints);
}

TEST_F(StoreWatchTest, RequestedChunksCarryTokens) {
  Publish(1);
  v1::WatchRequest request;
  EXPECT_EQ(Watch(request)->Next().kind(), v1::WatchEvent::START);
  request.set_with_chunks(true);
  const auto stream = Watch(request);
  EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::START);
  const v1::WatchEvent snapshot = stream->Next();
  ASSERT_EQ(snapshot.kind(), v1::WatchEvent::SNAPSHOT);
  const v1::ChunkRun& run = snapshot.chunks();
  EXPECT_EQ(run.chunk_tokens(), 16u);
  EXPECT_EQ(run.parent_id(), 0u);
  ASSERT_EQ(run.chunk_ids_size(), 2);
  EXPECT_EQ(std::vector<uint32_t>(run.token_ids().begin(), run.token_ids().end()),
            KitTokens(1, 32));
  EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::SNAPSHOT_END);

  // A longer prompt with the same beginning has the same chunk ids there. Another prompt has other
  // ids.
  const KitPrompt longer{KitTokens(1, 65), {}};
  ASSERT_TRUE(KitPublish(server_.store(), model_, longer, {64}).ok());
  const v1::WatchEvent stored = stream->Next();
  ASSERT_EQ(stored.kind(), v1::WatchEvent::STORED);
  ASSERT_EQ(stored.chunks().chunk_ids_size(), 4);
  EXPECT_EQ(stored.chunks().chunk_ids(0), run.chunk_ids(0));
  EXPECT_EQ(stored.chunks().chunk_ids(1), run.chunk_ids(1));
  Publish(2);
  const v1::WatchEvent other = stream->Next();
  EXPECT_NE(other.chunks().chunk_ids(0), run.chunk_ids(0));
  EXPECT_NE(other.chunks().chunk_ids(1), run.chunk_ids(1));
}

// The store keeps only the tail of sliding-window layers. If a model has only such layers, the
// store keeps no object before the tail. Events must still have the whole prefix: a router that
// took the tail for the prefix would cause misses.
TEST_F(StoreWatchTest, SlidingWindowEventsHaveWholePrefix) {
  KitModel sliding;
  sliding.layer_types = "lll";
  v1::WatchRequest request;
  request.set_with_chunks(true);
  const auto stream = Watch(request);
  EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::START);
  EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::SNAPSHOT_END);
  const KitPrompt prompt{KitTokens(1, 97), {}};
  for (const Fingerprint& model : {model_, sliding.Make()}) {
    ASSERT_TRUE(KitPublish(server_.store(), model, prompt, {32, 96}).ok());
    for (const uint32_t boundary : {32u, 96u}) {
      const v1::WatchEvent stored = stream->Next();
      ASSERT_EQ(stored.kind(), v1::WatchEvent::STORED);
      const v1::ChunkRun& run = stored.chunks();
      EXPECT_EQ(run.first_chunk(), 0u);
      EXPECT_EQ(run.parent_id(), 0u);
      EXPECT_EQ(run.chunk_ids_size() * 16u, boundary);
      EXPECT_EQ(std::vector<uint32_t>(run.token_ids().begin(), run.token_ids().end()),
                KitTokens(1, boundary));
    }
    // Only the two boundaries can be restored and have events. A boundary at 64 tokens has none,
    // because its tail is incomplete.
    ASSERT_TRUE(server_.store()->Drop(LatestId(), "default", false).ok());
    ASSERT_TRUE(server_.store()->Drop(LatestId(), "default", false).ok());
    EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::DROPPED);
    EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::DROPPED);
  }
}

TEST_F(StoreWatchTest, UnrequestedTokensAreNotSent) {
  Publish(1);
  const auto stream = Watch();
  EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::START);
  EXPECT_FALSE(stream->Next().has_chunks());
}

TEST_F(StoreWatchTest, BoundaryInsideChunkHasNoChunks) {
  const KitPrompt prompt{KitTokens(1, 40), {40}};
  ASSERT_TRUE(KitPublish(server_.store(), model_, prompt, {40}).ok());
  v1::WatchRequest request;
  request.set_with_chunks(true);
  const auto stream = Watch(request);
  EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::START);
  const v1::WatchEvent snapshot = stream->Next();
  EXPECT_EQ(snapshot.restore_point().tokens(), 40u);
  EXPECT_FALSE(snapshot.has_chunks());
  EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::SNAPSHOT_END);
}

TEST_F(StoreWatchTest, LongPromptSpansSeveralEvents) {
  constexpr uint32_t kTokens = kMaxWatchTokens + 160;
  const KitPrompt prompt{KitTokens(1, kTokens + 1), {}};
  ASSERT_TRUE(KitPublish(server_.store(), model_, prompt, {kTokens}).ok());
  v1::WatchRequest request;
  request.set_with_chunks(true);
  const auto stream = Watch(request);
  EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::START);
  std::vector<uint64_t> ids;
  std::vector<uint32_t> tokens;
  for (int piece = 0; piece < 2; ++piece) {
    const v1::WatchEvent event = stream->Next();
    EXPECT_EQ(event.kind(), piece == 0 ? v1::WatchEvent::SNAPSHOT : v1::WatchEvent::CHUNKS);
    EXPECT_EQ(event.sequence(), 1u);
    EXPECT_EQ(event.chunks().first_chunk(), ids.size());
    EXPECT_EQ(event.chunks().parent_id(), ids.empty() ? 0 : ids.back());
    ids.insert(ids.end(), event.chunks().chunk_ids().begin(), event.chunks().chunk_ids().end());
    tokens.insert(tokens.end(), event.chunks().token_ids().begin(),
                  event.chunks().token_ids().end());
  }
  EXPECT_EQ(ids.size(), kTokens / 16);
  EXPECT_EQ(tokens, KitTokens(1, kTokens));
  EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::SNAPSHOT_END);
}

// If a caller does not read, the server ends its Watch and its List.
TEST_F(StoreWatchTest, StalledWatcherIsEnded) {
  for (uint64_t seed = 1; seed <= 700; ++seed) Publish(seed);
  server_.admission()->SetPatience(absl::Milliseconds(50));
  grpc::ChannelArguments narrow;
  narrow.SetInt("grpc.http2.bdp_probe", 0);
  narrow.SetInt("grpc.http2.lookahead_bytes", 1024);
  const auto stub = v1::CacheStore::NewStub(
      grpc::CreateCustomChannel(server_.address(), grpc::InsecureChannelCredentials(), narrow));
  grpc::ClientContext watch_context, list_context;
  const auto watch = stub->Watch(&watch_context, {});
  const auto list = stub->List(&list_context, {});
  v1::WatchEvent event;
  v1::RestorePointInfo point;
  watch->Read(&event);  // reads the first event, unless the call has ended
  list->Read(&point);
  EXPECT_TRUE(server_.admission()->WaitIdle(absl::InfiniteFuture())) << "they end by themselves";
  while (watch->Read(&event)) {
  }
  while (list->Read(&point)) {
  }
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(list->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(StoreWatchTest, ResumesAfterLastEvent) {
  Publish(1);
  v1::WatchRequest again;
  {
    const auto stream = Watch();
    const v1::WatchEvent start = stream->Next();
    again.set_incarnation(start.incarnation());
    again.set_since_sequence(start.sequence());
  }
  Publish(2);
  Publish(3);
  const auto stream = Watch(again);
  const v1::WatchEvent start = stream->Next();
  EXPECT_TRUE(start.resumed());
  EXPECT_EQ(start.sequence(), 1u);
  for (uint64_t sequence = 2; sequence <= 3; ++sequence) {
    const v1::WatchEvent missed = stream->Next();
    EXPECT_EQ(missed.kind(), v1::WatchEvent::STORED);
    EXPECT_EQ(missed.sequence(), sequence);
  }
  const v1::WatchEvent end = stream->Next();
  EXPECT_EQ(end.kind(), v1::WatchEvent::SNAPSHOT_END) << "up to date, without a snapshot";
  EXPECT_EQ(end.sequence(), 3u);
  Publish(4);
  EXPECT_EQ(stream->Next().sequence(), 4u);
}

TEST_F(StoreWatchTest, UnknownResumePositionGetsSnapshot) {
  for (uint64_t seed = 1; seed <= 2; ++seed) Publish(seed);
  v1::WatchRequest again;
  again.set_incarnation(server_.store()->Stats().incarnation + 1);
  again.set_since_sequence(1);
  EXPECT_FALSE(Watch(again)->Next().resumed());
  again.set_incarnation(server_.store()->Stats().incarnation);
  EXPECT_TRUE(Watch(again)->Next().resumed());
  for (size_t i = 0; i <= EventHub::kMaxRecentEvents; ++i) {
    ASSERT_TRUE(server_.store()->SetPinned(LatestId(), "default", i % 2 == 0).ok());
  }
  const auto stream = Watch(again);
  EXPECT_FALSE(stream->Next().resumed());
  EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::SNAPSHOT);
}

TEST_F(StoreWatchTest, WithoutSnapshotOnlyChangesAreSent) {
  Publish(1);
  v1::WatchRequest request;
  request.set_no_snapshot(true);
  const auto stream = Watch(request);
  EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::START);
  EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::SNAPSHOT_END);
  Publish(2);
  EXPECT_EQ(stream->Next().kind(), v1::WatchEvent::STORED);
}

// A restore point that is acknowledged from memory has a second event when it is on disk, not
// earlier.
TEST_F(StoreWatchOnDiskTest, DurableEventFollowsMemoryPublish) {
  const auto stream = Watch();
  while (stream->Next().kind() != v1::WatchEvent::SNAPSHOT_END) {
  }
  Publish(1);
  v1::WatchEvent event = stream->Next();
  EXPECT_EQ(event.kind(), v1::WatchEvent::STORED);
  EXPECT_TRUE(event.restore_point().durable());
  EXPECT_EQ(event.restore_point().tier(), v1::TIER_HOST);
  Publish(2, Durability::kMemory);
  event = stream->Next();
  EXPECT_EQ(event.kind(), v1::WatchEvent::STORED);
  EXPECT_FALSE(event.restore_point().durable());
  const std::string id = event.restore_point().restore_point_id();
  event = stream->Next();
  EXPECT_EQ(event.kind(), v1::WatchEvent::DURABLE);
  EXPECT_EQ(event.restore_point().restore_point_id(), id);
  EXPECT_TRUE(event.restore_point().durable());
  Publish(1);  // already durable, so no second event
  Publish(3);
  event = stream->Next();
  EXPECT_EQ(event.kind(), v1::WatchEvent::STORED);
  EXPECT_EQ(event.sequence(), 4u);
}

// A test that applies all events to a model of the store gets the store's contents, whenever the
// snapshot was taken.
TEST_F(StoreWatchOnDiskTest, EventsDescribeStoreContents) {
  constexpr uint32_t kLastTokens = 16;
  absl::Notification snapshot_ended;
  std::thread publisher([&] {
    for (uint64_t seed = 1; seed <= 200; ++seed) {
      Publish(seed, seed % 2 == 0 ? Durability::kMemory : Durability::kDisk);
      const Digest id = LatestId();
      for (const bool pinned : {true, false}) {
        if (seed % (pinned ? 5 : 10) != 0) continue;
        EXPECT_TRUE(server_.store()->SetPinned(id, "default", pinned).ok());
      }
      if (seed % 3 == 0) server_.store()->Drop(id, "default", true).IgnoreError();
    }
    EXPECT_TRUE(server_.store()->Flush(absl::InfiniteFuture()).ok());
    // otherwise the snapshot may have the last point, without an event for it
    snapshot_ended.WaitForNotification();
    const KitPrompt last{KitTokens(1000, 33), {}};
    EXPECT_TRUE(KitPublish(server_.store(), model_, last, {kLastTokens}).ok());
  });
  const auto stream = Watch();
  std::map<std::string, std::string> model;
  v1::WatchEvent event = stream->Next();
  uint64_t last = event.sequence();
  for (bool in_snapshot = true; in_snapshot || event.restore_point().tokens() != kLastTokens;) {
    event = stream->Next();
    const std::string id = event.restore_point().restore_point_id();
    if (event.kind() == v1::WatchEvent::SNAPSHOT_END) {
      in_snapshot = false;
      snapshot_ended.Notify();
      continue;
    }
    if (event.kind() != v1::WatchEvent::SNAPSHOT) {
      EXPECT_EQ(event.sequence(), last + 1);
      last = event.sequence();
    }
    const bool is_new =
        event.kind() == v1::WatchEvent::SNAPSHOT || event.kind() == v1::WatchEvent::STORED;
    EXPECT_EQ(model.count(id), is_new ? 0u : 1u) << "told twice, or of what was not told";
    model[id] = RecordOf(event.restore_point());
    if (event.kind() == v1::WatchEvent::DROPPED) model.erase(id);
  }
  publisher.join();
  EXPECT_EQ(model, Listed());
}

}  // namespace
}  // namespace hearth
