// A Fetch stream holds objects only for a limited time, and is counted correctly, whatever its
// caller does.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/rpc/proto_conversion.h"
#include "services/store/store_calls.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/store_server.h"
#include "tests/support/fake_clock.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr uint32_t kStored = 64;
constexpr uint64_t kMiB = uint64_t{1} << 20;

// Returns a model with six global layers and one local layer. A prefix of 64 tokens has 26 slices.
Fingerprint ModelOf(uint32_t head_dim) {
  KitModel model;
  model.head_dim = head_dim;
  model.layer_types = "ggggggl";
  return model.Make();
}
Fingerprint SmallModel() { return ModelOf(64); }     // model with slices of 8 KiB
Fingerprint MiddleModel() { return ModelOf(1024); }  // model with slices of 128 KiB
Fingerprint LargeModel() { return ModelOf(4096); }   // model with slices of 512 KiB
constexpr uint64_t kSlices = 26;

KitPrompt StoredPrompt() { return {KitTokens(1, kStored + 1), {}}; }

v1::FetchRequest RequestFor(const Fingerprint& model) {
  v1::FetchRequest request;
  ToProto(model, request.mutable_prefix()->mutable_fingerprint());
  for (const uint32_t id : StoredPrompt().tokens) request.mutable_prefix()->add_token_ids(id);
  return request;
}

// Returns a channel whose connection buffers few bytes.
std::shared_ptr<grpc::Channel> NarrowChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt("grpc.http2.bdp_probe", 0);
  arguments.SetInt("grpc.http2.lookahead_bytes", 64 << 10);
  arguments.SetInt("grpc.use_local_subchannel_pool", 1);
  arguments.SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

struct Call {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::FetchResponse>> reader;
  v1::FetchResponse message;

  Call(v1::CacheStore::Stub* stub, const v1::FetchRequest& request)
      : reader(stub->Fetch(&context, request)) {}
  ~Call() { context.TryCancel(); }
  grpc::Status End() {
    while (reader->Read(&message)) {
    }
    return reader->Finish();
  }
};

class FetchCallTest : public ::testing::Test {
 protected:
  void Start(absl::Duration lease, absl::Duration patience, const std::string& folder = "") {
    server_ = nullptr;
    StoreOptions options = StoreServer::SmallStore(folder);
    options.shared_memory = true;
    static int number = 0;
    const std::string socket = absl::StrCat("@hearth-fetch-test-", getpid(), "-", ++number);
    server_ = std::make_unique<StoreServer>(options, "127.0.0.1:0", socket, lease, AccessFlags(),
                                            patience);
    server_->WaitForMemory();
  }
  // Publishes the stored prompt, whose bytes are then in the store's memory, as if a worker had
  // sent them.
  void Publish(const Fingerprint& model) {
    const PublishSpec spec = KitSpec(model, StoredPrompt(), {kStored});
    auto session = server_->store()->Publish(spec).value();
    const KvLayout layout = model.Layout().value();
    for (const uint32_t i : session->needed()) {
      for (const uint32_t layer : layout.LayersOf(spec.objects[i].id.group)) {
        const SliceView slice = KitSlice(model, StoredPrompt(), spec.objects[i].id, layer);
        std::shared_ptr<std::byte> memory = session->AllocateSlice(slice.bytes.size()).value();
        std::memcpy(memory.get(), slice.bytes.data(), slice.bytes.size());
        const absl::Span<const std::byte> bytes(memory.get(), slice.bytes.size());
        ASSERT_TRUE(session->PutSlice(i, layer, {std::move(memory), bytes}).ok());
      }
    }
    ASSERT_TRUE(session->Commit().ok());
  }
  v1::FetchRequest SharingRequest(const Fingerprint& model) {
    v1::FetchRequest request = RequestFor(model);
    const SegmentId id = server_->store()->shared_memory()->layout.id;
    request.set_segment_id(id.data(), id.size());
    return request;
  }
  // Checks that no call holds objects of the store any more.
  void ExpectNothingIsHeld() {
    EXPECT_TRUE(server_->admission()->WaitIdle(absl::InfiniteFuture()));
    ASSERT_TRUE(server_->store()->DropAll("default", true).ok());
    EXPECT_EQ(server_->store()->Stats().objects, 0u);
    EXPECT_EQ(server_->store()->Stats().tiers.at(0).bytes, 0u);
  }
  uint64_t Count(const std::string& name) { return server_->store()->Stats().counters.at(name); }
  uint64_t HostTokens() { return server_->store()->Stats().tiers.at(0).hit_tokens; }
  uint64_t HostBytes() { return server_->store()->Stats().tiers.at(0).read_bytes; }
  uint64_t Timed(const std::string& name, const std::string& tier) {
    for (const LatencySeries& series : server_->store()->Stats().latencies) {
      if (series.name == name && series.label_value == tier) return series.counts.count();
    }
    ADD_FAILURE() << "no latency " << name;
    return 0;
  }

  FakeClock clock_;
  const TestFolder folder_;  // destroyed after the server, which writes into it
  std::unique_ptr<StoreServer> server_;
};

TEST_F(FetchCallTest, StalledReaderIsEnded) {
  Start(absl::Minutes(10), absl::Minutes(10));
  server_->admission()->SetClock(&clock_);
  Publish(LargeModel());
  const auto stub = v1::CacheStore::NewStub(NarrowChannel(server_->address()));
  Call call(stub.get(), RequestFor(LargeModel()));
  EXPECT_TRUE(call.reader->Read(&call.message));  // the plan
  while (HostBytes() == 0) std::this_thread::yield();
  // Only clock_ makes the caller late. Time must pass several times, because the store may still
  // have filled the connection's buffers when it first checks.
  while (server_->admission()->running() > 0) {
    clock_.Advance(absl::Minutes(10));
    std::this_thread::yield();
  }
  // The store has read from the tier: a message in progress, a waiting message, and the bytes that
  // the connection buffers.
  EXPECT_GT(HostBytes(), 0u);
  EXPECT_LE(HostBytes(), 4 * kMiB) << "of 13 MiB";
  EXPECT_EQ(HostTokens(), 0u);
  ExpectNothingIsHeld();
  EXPECT_EQ(call.End().error_code(), grpc::StatusCode::CANCELLED);
}

class SharedObjects : public FetchCallTest, public ::testing::WithParamInterface<uint32_t> {};

// Number of objects that are in RAM. With 5, only one object is streamed, so that all of it is sent
// except the bytes that the caller does not read.
INSTANTIATE_TEST_SUITE_P(ManyAndAllButOneSlice, SharedObjects, ::testing::Values(1, 5));

TEST_P(SharedObjects, LeaseExpiresWhileUnread) {
  Start(absl::Minutes(10), absl::Minutes(10), folder_.path());
  Publish(MiddleModel());
  Start(absl::Milliseconds(200), absl::Minutes(10), folder_.path());
  // Bring some objects to RAM, where they can be shared. The other objects stay on disk and are
  // streamed.
  {
    auto session = server_->store()->Fetch(KitQuery(MiddleModel(), StoredPrompt()), 0, 0).value();
    const KvLayout layout = MiddleModel().Layout().value();
    ASSERT_EQ(session->plan().objects.size(), 6u);
    for (uint32_t object = 0; object < GetParam(); ++object) {
      for (const uint32_t layer : layout.LayersOf(session->plan().objects[object].id.group)) {
        ASSERT_TRUE(session->ReadSlice(object, layer).ok());
      }
    }
  }
  ASSERT_TRUE(server_->store()->Flush(absl::InfiniteFuture()).ok());
  const auto stub = v1::CacheStore::NewStub(NarrowChannel(server_->address()));
  Call call(stub.get(), SharingRequest(MiddleModel()));
  if (call.reader->Read(&call.message)) {
    EXPECT_GT(call.message.plan().shared().objects_size(), 0);
  }
  ExpectNothingIsHeld();
  EXPECT_FALSE(call.End().ok());
}

TEST_F(FetchCallTest, StreamLimitsAreEnforced) {
  Start(absl::Minutes(10), absl::Minutes(10));
  Publish(SmallModel());
  std::vector<std::unique_ptr<v1::CacheStore::Stub>> stubs;
  std::vector<std::unique_ptr<Call>> calls;
  const v1::FetchRequest request = SharingRequest(SmallModel());
  for (int i = 0; i < kFetchLimit.all; ++i) {
    if (i % kMaxConnectionStreams == 0) {
      stubs.push_back(v1::CacheStore::NewStub(ConnectedTo(server_->address())));
    }
    calls.push_back(std::make_unique<Call>(stubs.back().get(), request));
    ASSERT_TRUE(calls.back()->reader->Read(&calls.back()->message)) << i;
  }
  // If a connection has its maximum of calls, one more call waits in the client. On a new
  // connection the server refuses one more fetch.
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(50)));
  v1::StatsResponse stats;
  EXPECT_EQ(stubs.back()->Stats(&context, {}, &stats).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  Call refused(server_->stub(), request);
  const grpc::Status status = refused.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "fetch: limit of 512 open streams"))
      << status.error_message();
  calls.pop_back();
  // The slot is free when the server has noticed that the call has ended.
  bool has_place = false;
  while (!has_place) {
    Call next(server_->stub(), request);
    has_place = next.reader->Read(&next.message);
    if (has_place) continue;
    ASSERT_EQ(next.reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
}

TEST_F(FetchCallTest, WireAndSharedReadsCountEqually) {
  Start(absl::Minutes(10), absl::Minutes(10));
  Publish(SmallModel());
  const uint64_t whole = kSlices * SmallModel().Layout()->SliceBytes(16);
  v1::FetchRequest verifying = RequestFor(SmallModel());
  verifying.set_verifies(true);
  EXPECT_TRUE(Call(server_->stub(), verifying).End().ok());
  EXPECT_EQ(HostTokens(), kStored);
  EXPECT_EQ(HostBytes(), whole);
  EXPECT_EQ(Count("bytes_shared"), 0u);
  EXPECT_EQ(Timed("slice_read", "host"), kSlices);
  EXPECT_EQ(Timed("fetch", "host"), 1u);

  {
    Call sharing(server_->stub(), SharingRequest(SmallModel()));
    ASSERT_TRUE(sharing.reader->Read(&sharing.message));
    ASSERT_EQ(sharing.message.plan().shared().objects_size(), static_cast<int>(kSlices));
  }
  EXPECT_EQ(HostTokens(), 2 * kStored);
  EXPECT_EQ(HostBytes(), 2 * whole);
  EXPECT_EQ(Count("bytes_shared"), whole);
  EXPECT_EQ(Timed("slice_read", "host"), 2 * kSlices);
  EXPECT_EQ(Timed("fetch", "host"), 2u);

  // The caller says that it could not use the shared memory. The bytes are read and counted again,
  // but the tokens are not.
  v1::FetchRequest again = RequestFor(SmallModel());
  again.set_again(true);
  EXPECT_TRUE(Call(server_->stub(), again).End().ok());
  EXPECT_EQ(HostBytes(), 3 * whole);
  EXPECT_EQ(HostTokens(), 2 * kStored);
  EXPECT_EQ(Count("lookup_tokens"), 2 * (kStored + 1));
  EXPECT_EQ(Count("fetches"), 2u);
  EXPECT_EQ(Count("hits"), 2u);
  EXPECT_EQ(Count("refetches"), 1u);
}

}  // namespace
}  // namespace hearth
