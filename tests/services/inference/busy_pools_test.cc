// Servers whose thread pools have no free thread still answer health checks and short calls. Calls
// that wait for a pool continue when a thread is free. More calls wait than gRPC has threads.

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "services/rpc/proto_conversion.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/serving/blocked_pool.h"
#include "tests/services/store/small_layout.h"
#include "tests/services/store/store_server.h"

namespace hearth {
namespace {

constexpr int kCalls = 24;  // more than the 16 threads that gRPC has for callbacks

// Runs `call` on several threads at the same time.
class Callers {
 public:
  template <typename Call>
  Callers(int calls, Call call) {
    for (int i = 0; i < calls; ++i) threads_.emplace_back([call, i] { call(i); });
  }
  ~Callers() { Join(); }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

void WaitForJobs(const FairPool* pool, size_t jobs) {
  while (pool->waiting() < jobs) std::this_thread::yield();
}

TEST(FullThreadPools, BusyWorkerAnswersHealthChecks) {
  WorkerServer::Options options;
  options.engine.max_queued = kCalls;
  WorkerServer server(options);
  std::vector<grpc::Status> statuses(kCalls);
  BlockedPool blocked(server.generator()->pool());
  Callers callers(kCalls, [&](int i) {
    grpc::ClientContext context;
    if (i % 3 == 0) {
      statuses[i] = server.Generate(TextRequest("the keeper")).status;
    } else if (i % 3 == 1) {
      v1::TokenizeRequest request;
      v1::TokenizeResponse response;
      request.mutable_prompt()->set_text("the keeper");
      statuses[i] = server.stub()->Tokenize(&context, request, &response);
    } else {
      v1::PrefillRequest request;
      v1::PrefillResponse response;
      request.mutable_prompt()->set_text("the keeper");
      statuses[i] = Prefill(server.stub(), request, &response);
    }
  });
  WaitForJobs(server.generator()->pool(), kCalls);
  EXPECT_TRUE(IsServing(server.channel()));
  grpc::ClientContext context;
  v1::GetModelResponse model;
  EXPECT_TRUE(server.stub()->GetModel(&context, {}, &model).ok());
  EXPECT_GE(server.admission()->running(), kCalls) << "none of them went on";
  blocked.LetGo();
  callers.Join();
  for (const grpc::Status& status : statuses) EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(FullThreadPools, BusyWorkerRefusesExcessPrompts) {
  WorkerServer::Options options;
  options.engine.max_queued = 128;
  WorkerServer server(options);
  BlockedPool blocked(server.generator()->pool());
  const int waiting = static_cast<int>(FairPoolOptions().max_waiting / 2);
  std::vector<grpc::Status> statuses(waiting);
  Callers callers(waiting,
                  [&](int i) { statuses[i] = server.Generate(TextRequest("the keeper")).status; });
  WaitForJobs(server.generator()->pool(), waiting);
  const Generation refused = server.Generate(TextRequest("the keeper"));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(absl::StrContains(refused.status.error_message(), "has 128 waiting requests"));
  blocked.LetGo();
  callers.Join();
  for (const grpc::Status& status : statuses) EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(FullThreadPools, CancelledQueuedPromptLeavesNothing) {
  WorkerServer server({});
  {
    BlockedPool blocked(server.generator()->pool());
    grpc::ClientContext context;
    auto reader = server.stub()->Generate(&context, TextRequest("the keeper"));
    WaitForJobs(server.generator()->pool(), 1);
    context.TryCancel();
    v1::GenerateResponse message;
    EXPECT_FALSE(reader->Read(&message));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(server.admission()->WaitIdle(absl::InfiniteFuture()));
  EXPECT_EQ(server.generator()->pool()->waiting(), 0u);
  EXPECT_TRUE(server.Generate(TextRequest("the keeper")).status.ok());
}

v1::Prefix PrefixOf(uint32_t tokens) {
  v1::Prefix prefix;
  ToProto(SmallFingerprint(), prefix.mutable_fingerprint());
  for (const uint32_t id : CountingTokens(tokens)) prefix.add_token_ids(id);
  return prefix;
}

TEST(FullThreadPools, BusyStoreAnswersHealthChecks) {
  StoreServer server(StoreServer::SmallStore(""));
  std::vector<grpc::Status> statuses(kCalls);
  BlockedPool blocked(server.service()->lookups());
  Callers callers(kCalls, [&](int i) {
    grpc::ClientContext context;
    if (i % 3 == 0) {
      v1::FetchRequest request;
      *request.mutable_prefix() = PrefixOf(40);
      auto reader = server.stub()->Fetch(&context, request);
      v1::FetchResponse response;
      while (reader->Read(&response)) {
      }
      statuses[i] = reader->Finish();
    } else if (i % 3 == 1) {
      v1::ExplainRequest request;
      v1::ExplainResponse response;
      *request.mutable_prefix() = PrefixOf(40);
      statuses[i] = server.stub()->Explain(&context, request, &response);
    } else {
      v1::LeaseRequest request;
      *request.mutable_prefix() = PrefixOf(40);
      auto reader = server.stub()->Lease(&context, request);
      v1::LeaseResponse response;
      while (reader->Read(&response)) {
      }
      statuses[i] = reader->Finish();
    }
  });
  WaitForJobs(server.service()->lookups(), kCalls);
  EXPECT_TRUE(IsServing(server.channel()));
  grpc::ClientContext context;
  v1::StatsResponse stats;
  EXPECT_TRUE(server.stub()->Stats(&context, {}, &stats).ok());
  EXPECT_GE(server.admission()->running(), kCalls) << "none of them went on";
  blocked.LetGo();
  callers.Join();
  for (const grpc::Status& status : statuses) EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(FullThreadPools, PublishWaitsForFreeThread) {
  StoreServer server(StoreServer::SmallStore(""));
  grpc::ClientContext context;
  {
    BlockedPool blocked(server.service()->lookups());
    auto call = server.stub()->Publish(&context);
    v1::PublishRequest begin;
    *begin.mutable_begin()->mutable_prefix() = PrefixOf(40);
    ASSERT_TRUE(call->Write(begin));
    WaitForJobs(server.service()->lookups(), 1);
    EXPECT_TRUE(IsServing(server.channel()));
    blocked.LetGo();
    v1::PublishResponse response;
    EXPECT_FALSE(call->Read(&response));
    EXPECT_EQ(call->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "no boundaries";
  }
}

TEST(FullThreadPools, BusyStoreRefusesExcessExplains) {
  StoreServer server(StoreServer::SmallStore(""));
  std::vector<grpc::Status> statuses(kExplainLimit.all + 1);
  BlockedPool blocked(server.service()->lookups());
  const auto explain = [&](int i) {
    grpc::ClientContext context;
    v1::ExplainRequest request;
    v1::ExplainResponse response;
    *request.mutable_prefix() = PrefixOf(40);
    statuses[i] = server.stub()->Explain(&context, request, &response);
  };
  Callers callers(kExplainLimit.all, explain);
  WaitForJobs(server.service()->lookups(), kExplainLimit.all);
  explain(kExplainLimit.all);
  EXPECT_EQ(statuses.back().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(absl::StrContains(statuses.back().error_message(), "64"));
  blocked.LetGo();
  callers.Join();
  statuses.pop_back();
  for (const grpc::Status& status : statuses) EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(FullThreadPools, TooManyPrefillCutsErrorNamesLimit) {
  StoreServer server(StoreServer::SmallStore(""));
  v1::ExplainRequest request;
  v1::ExplainResponse response;
  *request.mutable_prefix() = PrefixOf(70000);
  for (uint32_t cut = 1; cut <= 65537; ++cut) request.mutable_prefix()->add_cuts(cut);
  grpc::ClientContext context;
  const grpc::Status status = server.stub()->Explain(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "at most 65536 positions; got 65537"))
      << status.error_message();
}

}  // namespace
}  // namespace hearth
