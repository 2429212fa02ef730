// A worker's caller uses the prefixes of the tenant in its identity, also in the store.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/rpc/client_access.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/support/memory_prefix_cache.h"
#include "tests/support/test_certificates.h"

namespace hearth {
namespace {

class WorkerTenantsTest : public testing::Test {
 protected:
  WorkerTenantsTest() {
    Identities::Options callers;
    callers.file =
        folder_.Write("callers.json",
                      absl::StrCat(R"({"identities":[{"name":"b","role":"tenant","token_sha256":")",
                                   DigestHex(Sha256("token-b")), R"("}]})"));
    identities_ = Identities::Open(callers).value();
    WorkerServer::Options options;
    options.identities = identities_.get();
    options.geometry.context_tokens = 200000;  // so that an answer can take longer than the test
    server_ = std::make_unique<WorkerServer>(options);
    cache_ = std::make_unique<MemoryPrefixCache>(server_->engine()->layout());
    server_->SetCache(cache_.get());
  }
  std::unique_ptr<v1::Inference::Stub> StubAs(const std::string& token) {
    ClientAccess access;
    access.token_file = folder_.Write("token", token);
    return v1::Inference::NewStub(ConnectedTo(server_->runner()->address(), access));
  }
  v1::PrefillRequest Request() {
    v1::PrefillRequest request;
    for (uint32_t id = 0; id < 40; ++id) {
      request.mutable_prompt()->mutable_token_ids()->add_ids(id % 7 + 3);
    }
    return request;
  }

  SecretFolder folder_;
  std::unique_ptr<Identities> identities_;
  std::unique_ptr<MemoryPrefixCache> cache_;  // destroyed after the engine, which uses it
  std::unique_ptr<WorkerServer> server_;
};

TEST_F(WorkerTenantsTest, CallersTenantReachesStore) {
  v1::PrefillResponse response;
  const grpc::Status status = Prefill(StubAs("token-b").get(), Request(), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(cache_->BoundariesOf("b").empty());
  EXPECT_TRUE(cache_->BoundariesOf("default").empty());
}

TEST_F(WorkerTenantsTest, UnauthenticatedCallersAreRefused) {
  const auto stranger = StubAs("token-c");
  for (v1::Inference::Stub* stub : {stranger.get(), server_->stub()}) {
    grpc::ClientContext tokenize, model, explain, generate;
    v1::PrefillResponse prefilled;
    EXPECT_EQ(Prefill(stub, Request(), &prefilled).error_code(), grpc::StatusCode::UNAUTHENTICATED);
    v1::TokenizeResponse tokens;
    EXPECT_EQ(stub->Tokenize(&tokenize, {}, &tokens).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
    v1::GetModelResponse described;
    EXPECT_EQ(stub->GetModel(&model, {}, &described).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
    v1::ExplainResponse explained;
    EXPECT_EQ(stub->Explain(&explain, {}, &explained).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
    const auto reader = stub->Generate(&generate, v1::GenerateRequest());
    v1::GenerateResponse message;
    EXPECT_FALSE(reader->Read(&message));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  }
}

// If the identities file loses a caller, the caller's streams end; a store's streams end in the
// same way.
TEST_F(WorkerTenantsTest, RemovedIdentityEndsStreams) {
  const auto stub = StubAs("token-b");
  v1::GenerateRequest request;
  *request.mutable_prompt() = Request().prompt();
  request.set_max_new_tokens(150000);
  request.set_ignore_eos(true);
  grpc::ClientContext generating, loading;
  v1::LoadStateResponse loaded;
  const auto state = stub->LoadState(&loading, &loaded);
  const auto reader = stub->Generate(&generating, request);
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  folder_.Write("callers.json", R"({"identities":[]})");
  identities_->Reload();
  server_->admission()->CheckCalls();
  while (reader->Read(&message)) {
  }
  const grpc::Status generated = reader->Finish();
  EXPECT_EQ(generated.error_code(), grpc::StatusCode::UNAUTHENTICATED) << generated.error_message();
  const grpc::Status state_end = state->Finish();
  EXPECT_EQ(state_end.error_code(), grpc::StatusCode::UNAUTHENTICATED) << state_end.error_message();
}

}  // namespace
}  // namespace hearth
