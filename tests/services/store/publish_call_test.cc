// Hostile publishers: slices that begin and never end, and streams that are too slow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "cache_store/base/secret.h"
#include "cache_store/shared/tier/shared_store.h"
#include "services/rpc/proto_conversion.h"
#include "services/store/store_calls.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/store_server.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_shared_engine.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kHarmTokens = 16;
constexpr uint64_t kSliceBytes = 256 << 10;

// Returns a model whose slices have 256 KiB.
Fingerprint WideModel() {
  KitModel model;
  model.head_dim = 2048;
  return model.Make();
}

v1::PublishRequest WideBegin(const PublishSpec& spec) {
  v1::PublishRequest message;
  v1::PublishBegin* begin = message.mutable_begin();
  ToProto(spec.fingerprint, begin->mutable_prefix()->mutable_fingerprint());
  for (const uint32_t id : spec.token_ids) begin->mutable_prefix()->add_token_ids(id);
  for (const uint32_t boundary : spec.boundaries) begin->add_boundaries(boundary);
  for (const PublishObject& object : spec.objects) {
    v1::ObjectRef* ref = begin->add_objects();
    ToProto(object.id, ref);
    for (const uint64_t digest : object.slice_digests) ref->add_slice_digests(digest);
  }
  return message;
}

// One publish of a prompt that no other publisher has.
class Publisher {
 public:
  Publisher(StoreServer* server, uint64_t seed, Durability durability = Durability::kMemory)
      : stub_(v1::CacheStore::NewStub(ConnectedTo(server->address()))),
        spec_(KitSpec(WideModel(), {KitTokens(seed, kHarmTokens), {}}, {kHarmTokens})),
        seed_(seed),
        durability_(durability),
        call_(Start()) {}
  ~Publisher() {
    if (call_ == nullptr) return;
    context_.TryCancel();
    call_->Finish();
  }

  // Sends the begin message. Returns true if the store answered with its plan.
  bool Begin() {
    v1::PublishRequest begin = WideBegin(spec_);
    begin.mutable_begin()->set_durability(ToProto(durability_));
    return call_->Write(begin) && call_->Read(&response_) && response_.has_plan();
  }
  bool SendOneByte() {
    v1::PublishRequest message;
    const uint32_t object = response_.plan().needed(0);
    message.mutable_slice()->set_object(object);
    message.mutable_slice()->set_layer(FirstLayer(object));
    message.mutable_slice()->set_offset(sent_++);
    message.mutable_slice()->set_data("x");
    return call_->Write(message);
  }
  // Sends the slices and the commit, as an honest publisher does.
  grpc::Status SendAll() {
    const v1::PublishPlan plan = response_.plan();
    for (const uint32_t object : plan.needed()) {
      const ObjectId& id = spec_.objects[object].id;
      for (const uint32_t layer : WideModel().Layout()->LayersOf(id.group)) {
        const SliceView slice =
            KitSlice(WideModel(), {KitTokens(seed_, kHarmTokens), {}}, id, layer);
        v1::PublishRequest message;
        message.mutable_slice()->set_object(object);
        message.mutable_slice()->set_layer(layer);
        message.mutable_slice()->set_data(slice.bytes.data(), slice.bytes.size());
        call_->Write(message);
      }
    }
    v1::PublishRequest commit;
    commit.mutable_commit();
    call_->Write(commit);
    call_->Read(&response_);
    return Finish();
  }
  // Returns the durability in the store's ack.
  v1::Durability durable() const { return response_.ack().durable(); }
  // Waits until the server ends the stream. Returns the status.
  grpc::Status Finish() {
    v1::PublishResponse response;
    while (call_->Read(&response)) {
    }
    const grpc::Status status = call_->Finish();
    call_.reset();
    return status;
  }

 private:
  std::unique_ptr<grpc::ClientReaderWriter<v1::PublishRequest, v1::PublishResponse>> Start() {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(10)));
    return stub_->Publish(&context_);
  }
  uint32_t FirstLayer(uint32_t object) const {
    return WideModel().Layout()->LayersOf(spec_.objects[object].id.group)[0];
  }

  const std::unique_ptr<v1::CacheStore::Stub> stub_;
  const PublishSpec spec_;
  const uint64_t seed_;
  const Durability durability_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::PublishRequest, v1::PublishResponse>> call_;
  v1::PublishResponse response_;
  uint64_t sent_ = 0;
};

TEST(HostilePublish, UnfinishedSlicesStayWithinStagingLimit) {
  StoreOptions options = StoreServer::SmallStore("");
  options.max_staged_bytes = 2 << 20;
  StoreServer server(options);
  std::vector<std::unique_ptr<Publisher>> publishers;
  int refused = 0;
  ASSERT_EQ(WideModel().Layout()->SliceBytes(kHarmTokens), kSliceBytes);
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    publishers.push_back(std::make_unique<Publisher>(&server, seed));
    ASSERT_TRUE(publishers.back()->Begin());
    publishers.back()->SendOneByte();
    if (seed <= 8) {  // the first eight slices of 256 KiB fit the limit
      while (server.store()->Stats().staged_bytes < seed * kSliceBytes) std::this_thread::yield();
      continue;
    }
    const grpc::Status status = publishers.back()->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    ++refused;
  }
  EXPECT_EQ(refused, 32);
  EXPECT_LE(server.store()->Stats().most_staged_bytes, options.max_staged_bytes);
  publishers.clear();
  EXPECT_TRUE(server.admission()->WaitIdle(absl::InfiniteFuture()));
  EXPECT_EQ(server.store()->Stats().staged_bytes, 0u);
  Publisher honest(&server, 100);
  ASSERT_TRUE(honest.Begin());
  const grpc::Status status = honest.SendAll();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(HostilePublish, TooSlowPublishesAreEnded) {
  FakeClock clock;
  StoreServer server(StoreServer::SmallStore(""));
  server.admission()->SetClock(&clock);
  std::vector<std::unique_ptr<Publisher>> trickling;
  for (int i = 0; i < kPublishLimit.all; ++i) {
    trickling.push_back(std::make_unique<Publisher>(&server, i + 1));
    ASSERT_TRUE(trickling.back()->Begin());
    ASSERT_TRUE(trickling.back()->SendOneByte());
  }
  clock.Advance(absl::Seconds(10));
  {
    Publisher honest(&server, 1000);
    EXPECT_FALSE(honest.Begin()) << "nobody makes room for it";
    EXPECT_THAT(honest.Finish().error_message(), HasSubstr("limit of 64 open streams"));
  }
  // One byte every 50 seconds is slower than the required pace.
  for (int i = 0; i < 3; ++i) {
    for (auto& publisher : trickling) publisher->SendOneByte();
    clock.Advance(absl::Seconds(50));
  }
  for (auto& publisher : trickling) {
    const grpc::Status status = publisher->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_THAT(status.error_message(), HasSubstr("must transfer at least 1048576 in 1m"));
  }
  EXPECT_TRUE(server.admission()->WaitIdle(absl::InfiniteFuture()));
  EXPECT_EQ(server.store()->Stats().staged_bytes, 0u);
  Publisher honest(&server, 1001);
  ASSERT_TRUE(honest.Begin());
  EXPECT_TRUE(honest.SendAll().ok());
}

// If Redis is slow, only the publishes that need it wait. They must not block the threads that
// commit other publishes.
TEST(SharedPublish, SlowRedisDoesNotBlockPublishes) {
  const TestFolder folder;
  StoreOptions options = StoreServer::SmallStore("");
  options.secret_file = folder.path() + "/secret";
  const std::string secret = ReadOrMakeSecret(options.secret_file).value();
  FakeClock clock;
  FakeSharedMemory memory;
  auto engine = std::make_unique<FakeSharedEngine>(&memory, &clock);
  absl::Notification may_end;
  engine->OnWritten([&] { may_end.WaitForNotification(); });
  StoreServer server(std::make_unique<SharedStore>(
      TieredStore::Open(options).value(), std::move(engine), secret, SharedOptions(),
      SharedStore::Seams{&clock, nullptr, nullptr, nullptr}));
  std::vector<std::thread> waiting;
  for (uint64_t seed = 1; seed <= kPublishCommitters; ++seed) {
    waiting.emplace_back([&server, seed] {
      Publisher publisher(&server, seed, Durability::kShared);
      EXPECT_TRUE(publisher.Begin());
      const grpc::Status status = publisher.SendAll();
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(publisher.durable(), v1::DURABILITY_SHARED);
    });
  }
  while (server.store()->Stats().restore_points < kPublishCommitters) std::this_thread::yield();
  {
    Publisher other(&server, 100);
    EXPECT_TRUE(other.Begin());
    const grpc::Status status = other.SendAll();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  may_end.Notify();
  for (std::thread& thread : waiting) thread.join();
}

}  // namespace
}  // namespace hearth
