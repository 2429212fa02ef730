// Lease over gRPC: eight callers that miss the same prefix, holders that die or are slow, a drain,
// and requests that are refused before they are parsed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"
#include "services/inference/blocking_stream.h"
#include "services/rpc/proto_conversion.h"
#include "services/store/cache_service.h"
#include "services/store/store_calls.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/serving/blocked_pool.h"
#include "tests/services/store/store_peer.h"
#include "tests/services/store/store_server.h"
#include "tests/support/store_kit.h"

namespace hearth {
namespace {

// the test fails after this time; normally it needs milliseconds
constexpr uint32_t kHangMs = 120000;

class LeaseCallTest : public ::testing::Test {
 protected:
  struct Stream {
    Stream(v1::CacheStore::Stub* stub, const v1::LeaseRequest& request)
        : reader(stub->Lease(&context, request)) {}
    ~Stream() { Cancel(); }
    void Cancel() {
      context.TryCancel();
      if (!std::exchange(finished, true)) reader->Finish();
    }
    v1::LeaseResponse Next() {
      v1::LeaseResponse response;
      EXPECT_TRUE(reader->Read(&response));
      return response;
    }
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::LeaseResponse>> reader;
    bool finished = false;
  };

  v1::LeaseRequest Request(uint32_t lease_ms = kHangMs, uint32_t wait_ms = kHangMs) const {
    v1::LeaseRequest request;
    ToProto(model_, request.mutable_prefix()->mutable_fingerprint());
    for (const uint32_t id : prompt_.tokens) request.mutable_prefix()->add_token_ids(id);
    request.set_min_tokens(16);
    request.set_lease_ms(lease_ms);
    request.set_wait_ms(wait_ms);
    return request;
  }
  std::unique_ptr<Stream> Open(const v1::LeaseRequest& request) {
    return std::make_unique<Stream>(server_.stub(), request);
  }
  std::unique_ptr<Stream> OpenWaiting(const v1::LeaseRequest& request) {
    auto stream = Open(request);
    EXPECT_EQ(stream->Next().turn(), v1::LeaseResponse::WAIT);
    return stream;
  }
  std::unique_ptr<Stream> OpenHolding(const v1::LeaseRequest& request) {
    auto stream = Open(request);
    EXPECT_EQ(stream->Next().turn(), v1::LeaseResponse::COMPUTE);
    return stream;
  }
  uint64_t Count(const char* name) { return server_.store()->Stats().counters.at(name); }

  StoreServer server_{StoreServer::SmallStore("")};
  const Fingerprint model_ = KitModel().Make();
  const KitPrompt prompt_{KitTokens(1, 70), {}};
};

TEST_F(LeaseCallTest, OneOfEightMissesComputes) {
  constexpr int kClients = 8;
  absl::BlockingCounter answered(kClients);
  std::atomic<int> computed{0}, served{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      const auto stub = v1::CacheStore::NewStub(ConnectedTo(server_.address()));
      Stream stream(stub.get(), Request());
      v1::LeaseResponse response = stream.Next();
      answered.DecrementCount();
      if (response.turn() == v1::LeaseResponse::COMPUTE) {
        ++computed;
        EXPECT_EQ(response.boundary(), 64u);
        answered.Wait();
        EXPECT_TRUE(KitPublish(server_.store(), model_, prompt_, {64}).ok());
        return;
      }
      EXPECT_EQ(response.turn(), v1::LeaseResponse::WAIT);
      response = stream.Next();
      EXPECT_EQ(response.turn(), v1::LeaseResponse::GO);
      EXPECT_EQ(response.usable_tokens(), 64u);
      EXPECT_EQ(KitFetch(server_.store(), model_, prompt_).value(), 64u) << "and the right bytes";
      ++served;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(computed, 1);
  EXPECT_EQ(served, kClients - 1);
  EXPECT_EQ(Count("lease_waits_hit"), 7u);
}

TEST_F(LeaseCallTest, WaiterComputesWhenHolderLeaves) {
  const auto holder = OpenHolding(Request());
  const auto first = OpenWaiting(Request());
  holder->Cancel();
  EXPECT_EQ(first->Next().turn(), v1::LeaseResponse::COMPUTE);
  const auto second = OpenWaiting(Request());
  first->Cancel();
  EXPECT_EQ(second->Next().turn(), v1::LeaseResponse::COMPUTE);
  EXPECT_EQ(Count("lease_takeovers"), 2u);
}

TEST_F(LeaseCallTest, WaiterComputesWhenLeaseExpires) {
  // On a busy machine the lease may expire before the follower asks. Then the test tries a longer
  // lease.
  for (uint32_t lease_ms = 50; lease_ms < kHangMs; lease_ms *= 2) {
    {
      const auto holder = OpenHolding(Request(lease_ms));
      const auto follower = Open(Request());
      if (follower->Next().turn() == v1::LeaseResponse::WAIT) {
        EXPECT_EQ(follower->Next().turn(), v1::LeaseResponse::COMPUTE);
        v1::LeaseResponse none;
        EXPECT_FALSE(holder->reader->Read(&none)) << "the holder's stream has ended";
        return;
      }
    }
    server_.admission()->WaitIdle(absl::InfiniteFuture());
  }
  FAIL() << "no follower waits";
}

TEST_F(LeaseCallTest, WaiterComputesAfterItsWait) {
  const auto holder = OpenHolding(Request());
  // On a busy machine the wait may end before it is announced. Then the test tries a longer wait.
  for (uint32_t wait_ms = 50; wait_ms < kHangMs; wait_ms *= 2) {
    const uint64_t before = Count("lease_waits_timed_out");
    const auto follower = Open(Request(kHangMs, wait_ms));
    v1::LeaseResponse response = follower->Next();
    if (response.turn() == v1::LeaseResponse::GO) continue;
    EXPECT_EQ(response.turn(), v1::LeaseResponse::WAIT);
    response = follower->Next();
    EXPECT_EQ(response.turn(), v1::LeaseResponse::GO);
    EXPECT_EQ(response.usable_tokens(), 0u);
    EXPECT_EQ(Count("lease_waits_timed_out"), before + 1);
    v1::LeaseResponse none;
    EXPECT_FALSE(follower->reader->Read(&none));
    return;
  }
  FAIL() << "no follower waits";
}

TEST_F(LeaseCallTest, DrainReleasesWaiters) {
  const auto holder = OpenHolding(Request());
  const auto follower = OpenWaiting(Request());
  server_.admission()->Close();
  EXPECT_EQ(follower->Next().turn(), v1::LeaseResponse::GO);
  EXPECT_TRUE(server_.admission()->WaitIdle(absl::Now() + absl::Seconds(60)));
  follower->finished = true;
  EXPECT_TRUE(follower->reader->Finish().ok());
  const auto late = Open(Request());
  v1::LeaseResponse none;
  EXPECT_FALSE(late->reader->Read(&none));
  late->finished = true;
  EXPECT_EQ(late->reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(LeaseCallTest, CancelledLeasesHoldNothing) {
  const auto holder = OpenHolding(Request());
  const auto follower = OpenWaiting(Request());
  follower->Cancel();
  while (server_.admission()->running() > 1) std::this_thread::yield();
  holder->Cancel();
  EXPECT_TRUE(server_.admission()->WaitIdle(absl::Now() + absl::Seconds(60)));
  EXPECT_EQ(Count("lease_takeovers"), 0u);
}

TEST_F(LeaseCallTest, EmptyPrefixIsRefused) {
  v1::LeaseRequest request = Request();
  request.mutable_prefix()->clear_token_ids();
  const auto stream = Open(request);
  v1::LeaseResponse none;
  EXPECT_FALSE(stream->reader->Read(&none));
  stream->finished = true;
  EXPECT_EQ(stream->reader->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

void AwaitWaiting(const FairPool* pool, size_t jobs) {
  while (pool->waiting() < jobs) std::this_thread::yield();
}

// The record of a call has the number of tokens of its request, so it shows whether the request was
// parsed.
TEST_F(LeaseCallTest, DrainedLeaseInQueueIsNotParsed) {
  absl::Mutex mutex;
  std::vector<uint64_t> tokens;
  StoreServer server(StoreServer::SmallStore(""));
  server.OnCall([&](const CallRecord& call) {
    absl::MutexLock lock(&mutex);
    tokens.push_back(call.note.tokens);
  });
  {
    Stream parsed(server.stub(), Request());
    EXPECT_EQ(parsed.Next().turn(), v1::LeaseResponse::COMPUTE);
  }
  EXPECT_TRUE(server.admission()->WaitIdle(absl::Now() + absl::Seconds(60)));
  BlockedPool blocked(server.service()->lookups());
  Stream stream(server.stub(), Request());
  AwaitWaiting(server.service()->lookups(), 1);
  server.admission()->Close();
  blocked.LetGo();
  EXPECT_EQ(stream.Next().turn(), v1::LeaseResponse::GO);
  stream.finished = true;
  EXPECT_TRUE(stream.reader->Finish().ok());
  EXPECT_TRUE(server.admission()->WaitIdle(absl::Now() + absl::Seconds(60)));
  absl::MutexLock lock(&mutex);
  EXPECT_THAT(tokens, ::testing::ElementsAre(prompt_.tokens.size(), 0u));
}

class RefusedLeaseTest : public TenantsFixture {};

// A lease keeps its request in memory, so a large request takes several slots of the limit. The
// pool is blocked, so that no request is parsed.
TEST_F(RefusedLeaseTest, ExcessLeaseIsRefusedUnparsed) {
  StoreServer server(options_, access_);
  BlockedPool blocked(server.service()->lookups());
  const auto channel = ConnectedTo(server.address(), As("a"));
  const grpc::Slice slice(std::string(size_t{5} << 19, '\xff'));  // not a valid LeaseRequest
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer answer;
  // Each of these requests takes 41 slots. A tenant gets half of 2,048 slots; one more request may
  // begin if it still fits.
  constexpr size_t kFit = 25;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<BlockingStream>> waits;
  for (size_t i = 0; i < kFit; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    waits.push_back(std::make_unique<BlockingStream>(channel, "/hearth.v1.CacheStore/Lease",
                                                     contexts.back().get()));
    EXPECT_TRUE(waits.back()->WriteLast(request));
    AwaitWaiting(server.service()->lookups(), i + 1);
  }
  grpc::ClientContext last;
  last.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(kHangMs)));
  BlockingStream refused(channel, "/hearth.v1.CacheStore/Lease", &last);
  EXPECT_TRUE(refused.WriteLast(request));
  EXPECT_FALSE(refused.Read(&answer));
  const grpc::Status status = refused.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_THAT(status.error_message(),
              ::testing::HasSubstr("lease: tenant \"a\" has 1025 open streams"));
  blocked.LetGo();
  for (const auto& wait : waits) {
    EXPECT_FALSE(wait->Read(&answer));
    EXPECT_EQ(wait->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
}

}  // namespace
}  // namespace hearth
