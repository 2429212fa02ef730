#include "services/store/cache_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/status_conversion.h"
#include "tests/services/store/small_layout.h"
#include "tests/services/store/store_server.h"

namespace hearth {
namespace {

using PublishCall = grpc::ClientReaderWriter<v1::PublishRequest, v1::PublishResponse>;

v1::Prefix SmallPrefix(uint32_t tokens) {
  v1::Prefix prefix;
  ToProto(SmallFingerprint(), prefix.mutable_fingerprint());
  for (uint32_t id : CountingTokens(tokens)) prefix.add_token_ids(id);
  return prefix;
}

v1::PublishRequest Begin(uint32_t boundary) {
  v1::PublishRequest message;
  v1::PublishBegin* begin = message.mutable_begin();
  *begin->mutable_prefix() = SmallPrefix(boundary);
  begin->add_boundaries(boundary);
  for (const auto& object : SmallObjects(boundary)) {
    v1::ObjectRef* ref = begin->add_objects();
    ToProto(object->id, ref);
    for (uint64_t digest : object->slice_digests) ref->add_slice_digests(digest);
  }
  return message;
}

// Returns messages with all slices of an object, in pieces of `piece` bytes.
std::vector<v1::PublishRequest> Slices(uint32_t boundary, uint32_t index, size_t piece = 1 << 20) {
  std::vector<v1::PublishRequest> messages;
  const auto object = SmallObjects(boundary)[index];
  const size_t bytes = SmallLayout().SliceBytes(object->id.tokens);
  const std::byte* from = object->bytes.get();
  for (uint32_t layer : SmallLayout().LayersOf(object->id.group)) {
    for (size_t at = 0; at < bytes; at += piece) {
      v1::PublishRequest message;
      message.mutable_slice()->set_object(index);
      message.mutable_slice()->set_layer(layer);
      message.mutable_slice()->set_offset(at);
      message.mutable_slice()->set_data(from + at, std::min(piece, bytes - at));
      messages.push_back(message);
    }
    from += bytes;
  }
  return messages;
}

v1::PublishRequest Commit() {
  v1::PublishRequest message;
  message.mutable_commit();
  return message;
}

class CacheServiceTest : public testing::Test {
 protected:
  CacheServiceTest() : server_(StoreServer::SmallStore("")) {}

  // Publishes: sends the begin message, the slices that the plan needs, and the commit.
  grpc::Status Publish(uint32_t boundary, v1::PublishAck* ack, size_t piece = 1 << 20) {
    grpc::ClientContext context;
    auto call = server_.stub()->Publish(&context);
    v1::PublishResponse response;
    call->Write(Begin(boundary));
    if (call->Read(&response)) {
      needed_.assign(response.plan().needed().begin(), response.plan().needed().end());
      for (uint32_t index : needed_) {
        for (const auto& message : Slices(boundary, index, piece)) call->Write(message);
      }
      call->Write(Commit());
      if (call->Read(&response)) *ack = response.ack();
    }
    return call->Finish();
  }
  // Sends `first`, and after the plan the messages in `rest`. Returns the status of the stream.
  grpc::Status PublishMessages(const v1::PublishRequest& first,
                               const std::vector<v1::PublishRequest>& rest) {
    grpc::ClientContext context;
    auto call = server_.stub()->Publish(&context);
    v1::PublishResponse response;
    call->Write(first);
    if (call->Read(&response)) {
      for (const auto& message : rest) call->Write(message);
      call->WritesDone();
      while (call->Read(&response)) {
      }
    }
    return call->Finish();
  }
  std::vector<v1::FetchResponse> Fetch(const v1::FetchRequest& request, grpc::Status* status) {
    grpc::ClientContext context;
    auto reader = server_.stub()->Fetch(&context, request);
    std::vector<v1::FetchResponse> messages;
    v1::FetchResponse message;
    while (reader->Read(&message)) messages.push_back(message);
    *status = reader->Finish();
    return messages;
  }
  std::vector<v1::RestorePointInfo> List() {
    grpc::ClientContext context;
    auto reader = server_.stub()->List(&context, {});
    std::vector<v1::RestorePointInfo> points;
    v1::RestorePointInfo point;
    while (reader->Read(&point)) points.push_back(point);
    EXPECT_TRUE(reader->Finish().ok());
    return points;
  }

  StoreServer server_;
  std::vector<uint32_t> needed_;
};

TEST_F(CacheServiceTest, PublishedBytesAreFetchedBack) {
  v1::PublishAck ack;
  const grpc::Status published = Publish(40, &ack, /*piece=*/100);
  ASSERT_TRUE(published.ok()) << published.error_message();
  ASSERT_EQ(ack.boundaries_size(), 1);
  EXPECT_EQ(ack.boundaries(0), 40u);
  EXPECT_EQ(needed_.size(), SmallObjects(40).size());

  v1::FetchRequest request;
  *request.mutable_prefix() = SmallPrefix(64);
  // in the exact class, a request can be restored only at its own cuts
  request.mutable_prefix()->add_cuts(40);
  grpc::Status status;
  const auto messages = Fetch(request, &status);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_TRUE(messages[0].has_plan());
  const v1::FetchPlan& plan = messages[0].plan();
  EXPECT_EQ(plan.usable_tokens(), 40u) << plan.miss_reason();
  EXPECT_EQ(plan.state().token_ids_size(), 40);
  EXPECT_EQ(plan.slowest_tier(), v1::TIER_HOST);
  uint32_t last_layer = 0;
  uint64_t bytes = 0;
  for (size_t i = 1; i < messages.size(); ++i) {
    const v1::SliceData& slice = messages[i].slice();
    EXPECT_GE(slice.layer(), last_layer) << "layer order from host";
    last_layer = slice.layer();
    bytes += slice.data().size();
    const auto object = SmallObjects(40)[slice.object()];
    const size_t slice_bytes = SmallLayout().SliceBytes(object->id.tokens);
    const int index = SliceIndex(SmallLayout().LayersOf(object->id.group), slice.layer());
    ASSERT_EQ(slice.data().size(), slice_bytes);
    EXPECT_EQ(slice.data(),
              std::string(reinterpret_cast<const char*>(object->bytes.get()) + index * slice_bytes,
                          slice_bytes));
  }
  EXPECT_EQ(bytes, plan.total_bytes());
}

TEST_F(CacheServiceTest, StoredObjectsAreNotRequested) {
  v1::PublishAck ack;
  ASSERT_TRUE(Publish(32, &ack).ok());
  ASSERT_TRUE(Publish(32, &ack).ok());
  EXPECT_TRUE(needed_.empty());
  EXPECT_EQ(ack.boundaries_size(), 1) << "already there counts as stored";
  EXPECT_EQ(ack.bytes_received(), 0u);
  ASSERT_TRUE(Publish(48, &ack).ok());
  EXPECT_EQ(needed_.size(), 2u) << "the objects of [32,48)";
}

TEST_F(CacheServiceTest, RepublishRenewsTtlWithoutBytes) {
  v1::PublishRequest begin = Begin(48);
  begin.mutable_begin()->set_ttl_s(60);
  std::vector<v1::PublishRequest> rest;
  for (uint32_t i = 0; i < SmallObjects(48).size(); ++i) {
    for (const auto& slice : Slices(48, i)) rest.push_back(slice);
  }
  rest.push_back(Commit());
  ASSERT_TRUE(PublishMessages(begin, rest).ok());
  ASSERT_EQ(List().size(), 1u);
  EXPECT_GT(List()[0].expires_in_s(), 0);
  EXPECT_LE(List()[0].expires_in_s(), 60);
  for (v1::ObjectRef& object : *begin.mutable_begin()->mutable_objects()) {
    object.clear_slice_digests();
    object.set_absent(true);
  }
  begin.mutable_begin()->set_ttl_s(3600);
  ASSERT_TRUE(PublishMessages(begin, {Commit()}).ok());
  EXPECT_GT(List()[0].expires_in_s(), 60);
  v1::PublishAck ack;
  ASSERT_TRUE(Publish(32, &ack).ok());
  for (const v1::RestorePointInfo& point : List()) {
    EXPECT_EQ(point.has_expires_in_s(), point.tokens() == 48);
  }
}

TEST_F(CacheServiceTest, MissHasPlanAndReason) {
  v1::FetchRequest request;
  *request.mutable_prefix() = SmallPrefix(64);
  grpc::Status status;
  const auto messages = Fetch(request, &status);
  ASSERT_TRUE(status.ok());
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].plan().usable_tokens(), 0u);
  EXPECT_FALSE(messages[0].plan().miss_reason().empty());
}

TEST_F(CacheServiceTest, FetchByIdReturnsWholePoint) {
  v1::PublishAck ack;
  ASSERT_TRUE(Publish(40, &ack).ok());
  const auto points = List();
  ASSERT_EQ(points.size(), 1u);
  EXPECT_EQ(points[0].tokens(), 40u);
  v1::FetchRequest request;
  request.set_restore_point_id(points[0].restore_point_id());
  grpc::Status status;
  EXPECT_EQ(Fetch(request, &status)[0].plan().usable_tokens(), 40u);
  EXPECT_TRUE(status.ok());
  request.mutable_restore_point_id()->back() ^= 1;
  EXPECT_TRUE(Fetch(request, &status).empty());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << status.error_message();
}

TEST_F(CacheServiceTest, AbortedPublishLeavesNothing) {
  grpc::ClientContext context;
  {
    auto call = server_.stub()->Publish(&context);
    v1::PublishResponse response;
    call->Write(Begin(40));
    ASSERT_TRUE(call->Read(&response));
    for (const auto& message : Slices(40, 0)) call->Write(message);
    context.TryCancel();
    EXPECT_FALSE(call->Finish().ok());
  }
  EXPECT_TRUE(server_.admission()->WaitIdle(absl::Now() + absl::Seconds(60)));
  EXPECT_TRUE(List().empty());
  v1::PublishAck ack;
  ASSERT_TRUE(Publish(40, &ack).ok());
  EXPECT_EQ(needed_.size(), SmallObjects(40).size());
}

TEST_F(CacheServiceTest, InvalidPublishErrorNamesField) {
  struct Case {
    const char* expected;
    v1::PublishRequest first;
    std::vector<v1::PublishRequest> rest;
  };
  v1::PublishRequest bad_durability = Begin(40);
  bad_durability.mutable_begin()->set_durability(static_cast<v1::Durability>(9));
  v1::PublishRequest bad_digest = Begin(40);
  bad_digest.mutable_begin()->mutable_prefix()->mutable_fingerprint()->set_digest("x");
  v1::PublishRequest bad_tenant = Begin(40);
  bad_tenant.mutable_begin()->mutable_prefix()->set_tenant("somebody");
  v1::PublishRequest bad_cuts = Begin(40);
  bad_cuts.mutable_begin()->mutable_prefix()->add_cuts(41);
  v1::PublishRequest empty = Begin(40);
  empty.mutable_begin()->mutable_prefix()->clear_token_ids();
  std::vector<v1::PublishRequest> gap = Slices(40, 0, 100);
  gap.erase(gap.begin() + 1);
  std::vector<v1::PublishRequest> wrong_layer = Slices(40, 0);
  wrong_layer[0].mutable_slice()->set_layer(0);
  std::vector<v1::PublishRequest> wrong_object = Slices(40, 0);
  wrong_object[0].mutable_slice()->set_object(99);
  std::vector<v1::PublishRequest> torn = {Slices(40, 0, 100)[0], Commit()};
  const Case cases[] = {
      {"first message must be begin", Commit(), {}},
      {"durability", bad_durability, {}},
      {"fingerprint.digest", bad_digest, {}},
      {"tenant", bad_tenant, {}},
      {"cut", bad_cuts, {}},
      {"prefix.token_ids: must not be empty", empty, {}},
      {"expected a slice or the commit", Begin(40), {Begin(40)}},
      {"slice.offset", Begin(40), gap},
      {"slice.layer", Begin(40), wrong_layer},
      {"slice.object", Begin(40), wrong_object},
      {"has only 100 of", Begin(40), torn},
  };
  for (const Case& c : cases) {
    const grpc::Status status = PublishMessages(c.first, c.rest);
    EXPECT_FALSE(status.ok()) << c.expected;
    EXPECT_TRUE(absl::StrContains(status.error_message(), c.expected))
        << c.expected << " in: " << status.error_message();
  }
  EXPECT_TRUE(List().empty());
}

TEST_F(CacheServiceTest, SliceWithWrongDigestIsDataLoss) {
  auto slices = Slices(40, 0);
  (*slices[0].mutable_slice()->mutable_data())[0] ^= 1;
  slices.push_back(Commit());
  EXPECT_EQ(PublishMessages(Begin(40), slices).error_code(), grpc::StatusCode::DATA_LOSS);
}

TEST(PublishPatience, SilentPublishTimesOut) {
  StoreServer server(StoreServer::SmallStore(""), "127.0.0.1:0", "", absl::Minutes(10), {},
                     /*patience=*/absl::Milliseconds(1));
  grpc::ClientContext context;
  auto call = server.stub()->Publish(&context);
  v1::PublishResponse response;
  // The call may have ended before these writes.
  if (call->Write(Begin(40)) && call->Read(&response)) call->Write(Slices(40, 0)[0]);
  while (call->Read(&response)) {
  }
  // The status is CANCELLED if the call ended before the plan.
  EXPECT_THAT(call->Finish().error_code(),
              testing::AnyOf(grpc::StatusCode::DEADLINE_EXCEEDED, grpc::StatusCode::CANCELLED));
  EXPECT_TRUE(server.admission()->WaitIdle(absl::InfiniteFuture()));
}

TEST_F(CacheServiceTest, PinsUnpinsAndDrops) {
  v1::PublishAck ack;
  ASSERT_TRUE(Publish(40, &ack).ok());
  v1::PinRequest pin;
  pin.set_restore_point_id(List()[0].restore_point_id());
  v1::PinResponse pinned;
  v1::DropRequest drop;
  drop.set_all(true);
  v1::DropResponse dropped;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server_.stub()->Pin(&context, pin, &pinned).ok());
    EXPECT_TRUE(pinned.restore_point().pinned());
  }
  {
    grpc::ClientContext context;
    const grpc::Status refused = server_.stub()->Drop(&context, drop, &dropped);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  }
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server_.stub()->Unpin(&context, pin, &pinned).ok());
    EXPECT_FALSE(pinned.restore_point().pinned());
  }
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server_.stub()->Drop(&context, drop, &dropped).ok());
    EXPECT_EQ(dropped.dropped(), 1u);
    EXPECT_GT(dropped.freed_bytes(), 0u);
  }
  EXPECT_TRUE(List().empty());
}

TEST_F(CacheServiceTest, ExplainsAndCounts) {
  v1::PublishAck ack;
  ASSERT_TRUE(Publish(40, &ack).ok());
  v1::ExplainRequest request;
  *request.mutable_prefix() = SmallPrefix(64);
  request.mutable_prefix()->add_cuts(40);
  v1::ExplainResponse explained;
  grpc::ClientContext explain_context, stats_context;
  ASSERT_TRUE(server_.stub()->Explain(&explain_context, request, &explained).ok());
  EXPECT_EQ(explained.usable_tokens(), 40u);
  EXPECT_FALSE(explained.summary().empty());
  v1::StatsResponse stats;
  ASSERT_TRUE(server_.stub()->Stats(&stats_context, {}, &stats).ok());
  EXPECT_EQ(stats.version(), "test");
  EXPECT_EQ(stats.restore_points(), 1u);
  EXPECT_GT(stats.tiers_size(), 0);
}

TEST_F(CacheServiceTest, DrainEndsWatch) {
  grpc::ClientContext context;
  auto reader = server_.stub()->Watch(&context, {});
  v1::WatchEvent event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.kind(), v1::WatchEvent::START);
  EXPECT_NE(event.incarnation(), 0u);
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.kind(), v1::WatchEvent::SNAPSHOT_END);
  v1::PublishAck ack;
  ASSERT_TRUE(Publish(40, &ack).ok());
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.kind(), v1::WatchEvent::STORED);
  EXPECT_EQ(event.restore_point().tokens(), 40u);
  server_.admission()->Close();
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(CacheServiceTest, WatcherOverLimitIsRefused) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchEvent>>> readers;
  for (int i = 0; i < kWatchLimit.all; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(server_.stub()->Watch(contexts.back().get(), {}));
    v1::WatchEvent event;
    ASSERT_TRUE(readers.back()->Read(&event)) << i;
  }
  grpc::ClientContext context;
  auto refused = server_.stub()->Watch(&context, {});
  v1::WatchEvent event;
  EXPECT_FALSE(refused->Read(&event));
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(context.GetServerTrailingMetadata().count(kRetryAfterMsKey), 1u);
  for (auto& open : contexts) open->TryCancel();
  for (auto& reader : readers) reader->Finish();
}

}  // namespace
}  // namespace hearth
