// What one Ask, and one tenant's Asks, may hold of a worker.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/rpc/client_access.h"
#include "tests/services/inference/ask_kit.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/serving/blocked_pool.h"
#include "tests/support/test_certificates.h"

namespace hearth {
namespace {

// A channel that takes 64 KiB of a stream ahead of its reader, and never more.
std::shared_ptr<grpc::Channel> NarrowChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

TEST(AskLimits, NoQuestionBeginsWhileTheCallerDoesNotRead) {
  constexpr uint32_t kQuestions = 1024, kIdBytes = 256;
  WorkerServer::Options options = Pooled();
  options.ask_waiting_bytes = 16 << 10;
  WorkerServer server(options);
  v1::AskRequest request = IdsAsk(kQuestions, 4, 1);
  for (uint32_t i = 0; i < kQuestions; ++i) {
    std::string id = absl::StrCat(i, "-");
    id.resize(kIdBytes, 'x');
    request.mutable_questions(static_cast<int>(i))->set_id(id);
  }
  const auto stub = v1::Inference::NewStub(NarrowChannel(server.runner()->address()));
  grpc::ClientContext context;
  const auto reader = stub->Ask(&context, request);
  v1::AskResponse message;
  ASSERT_TRUE(reader->Read(&message));
  ASSERT_TRUE(message.has_context());
  const auto begun = [&server] { return server.engine()->Stats().counters.at("requests"); };
  // So many fit into what may wait, whatever the channel takes. Each is larger than its id.
  while (begun() < (16 << 10) / (2 * kIdBytes)) std::this_thread::yield();
  // Others are served meanwhile. They would take long enough for all the questions.
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(server.Generate(IdsRequest(CountingTokens(20))).status.ok());
  }
  const uint64_t ahead = begun() - 200;
  EXPECT_LT(ahead, kQuestions / 2) << "64 KiB of the channel's, and 16 KiB";
  std::set<uint32_t> answered;
  for (const v1::Answer& answer : ReadAnswers(reader.get()).answers) {
    EXPECT_EQ(answer.error(), "");
    answered.insert(answer.question());
  }
  EXPECT_EQ(answered.size(), kQuestions) << "once the caller reads";
}

std::string Caller(const std::string& name) {
  return absl::StrCat(R"({"name":")", name, R"(","role":"tenant","token_sha256":")",
                      DigestHex(Sha256("token-" + name)), R"("})");
}

TEST(AskLimits, ATenantHasFourCallsAndOthersTheirs) {
  constexpr int kCalls = 4;
  SecretFolder folder;
  Identities::Options callers;
  callers.file = folder.Write(
      "callers.json", absl::StrCat(R"({"identities":[)", Caller("a"), ",", Caller("b"), "]}"));
  const std::unique_ptr<Identities> identities = Identities::Open(callers).value();
  WorkerServer::Options options = Pooled();
  options.identities = identities.get();
  WorkerServer server(options);
  const auto stub_as = [&](const std::string& name) {
    ClientAccess access;
    access.token_file = folder.Write("token-" + name, "token-" + name);
    return v1::Inference::NewStub(ConnectedTo(server.runner()->address(), access));
  };
  const auto a = stub_as("a"), b = stub_as("b");
  BlockedPool blocked(server.service()->prompts());
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::AskResponse>>> readers;
  const auto ask = [&](v1::Inference::Stub* stub) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(stub->Ask(contexts.back().get(), IdsAsk(2, 1)));
  };
  for (int i = 0; i < kCalls; ++i) ask(b.get());
  while (server.service()->prompts()->waiting() < kCalls) std::this_thread::yield();
  grpc::ClientContext fifth;
  const Asked refused = ReadAnswers(b->Ask(&fifth, IdsAsk(2, 1)).get());
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(
      absl::StrContains(refused.status.error_message(), "ask: 4 streams of tenant \"b\" are open"))
      << refused.status.error_message();
  ask(a.get());
  blocked.LetGo();
  for (const auto& reader : readers) EXPECT_EQ(ReadAnswers(reader.get()).answers.size(), 2u);
  grpc::ClientContext again;
  EXPECT_TRUE(ReadAnswers(b->Ask(&again, IdsAsk(2, 1)).get()).status.ok());
}

}  // namespace
}  // namespace hearth
