// Explain through a worker's cache: failures of the store, and a cache that is destroyed during a
// call.
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/status_conversion.h"
#include "tests/services/inference/scripted_store.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/small_layout.h"

namespace hearth {
namespace {

// If gRPC's own thread were the last to release the channel, it would sometimes abort the process.
TEST(RemoteExplainTest, CacheDestructionCancelsCall) {
  ScriptedStore store;
  absl::Notification asked, answer;
  store.explain = [&](const v1::ExplainRequest&, v1::ExplainResponse*) {
    asked.Notify();
    answer.WaitForNotification();
    return grpc::Status::OK;
  };
  CacheCounters counters;
  auto cache = std::make_unique<RemotePrefixCache>(ConnectedTo(store.address()), SmallFingerprint(),
                                                   SmallLayout(), &counters);
  PrefixRequest prefix;
  prefix.token_ids = CountingTokens(40);
  prefix.tenant = "default";
  absl::Status ended;
  cache->Explain(prefix, absl::InfiniteFuture(),
                 [&](absl::Status status, const auto&) { ended = std::move(status); });
  asked.WaitForNotification();
  cache.reset();
  EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled) << ended;
  answer.Notify();
  store.Stop();  // stop first, because the store's call may still read `answer`
}

TEST(ExplainTest, MissingStoreFailsPrecondition) {
  WorkerServer server({});
  v1::ExplainInputRequest request;
  request.mutable_prompt()->set_text("the keeper");
  v1::ExplainResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(server.stub()->Explain(&context, request, &response).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST(ExplainTest, StoreFailureNamesTheStore) {
  absl::Status failure;  // error that the store returns
  WorkerServer::Options options;
  options.explain = [&](PrefixRequest, absl::Time, const auto& done) {
    done(failure, v1::ExplainResponse());
  };
  options.store = "store.example:7080";
  WorkerServer server(options);
  const auto explain = [&](absl::Status said) {
    failure = std::move(said);
    v1::ExplainInputRequest request;
    request.mutable_prompt()->set_text("the keeper");
    v1::ExplainResponse response;
    grpc::ClientContext context;
    return FromGrpcStatus(server.stub()->Explain(&context, request, &response));
  };
  const std::string store = "explain: the worker's store at store.example:7080: ";
  EXPECT_EQ(explain(absl::UnavailableError("connection refused")),
            absl::UnavailableError(store + "the store cannot be reached (connection refused)"));
  EXPECT_EQ(explain(absl::DeadlineExceededError("Deadline Exceeded")),
            absl::UnavailableError(store + "the store did not answer"));
  EXPECT_EQ(explain(absl::PermissionDeniedError("no valid identity")),
            absl::PermissionDeniedError(store + "no valid identity"));
  EXPECT_EQ(explain(absl::UnavailableError("GOAWAY received")),
            absl::UnavailableError(store + "the server ended the connection at once; if it uses "
                                           "TLS, pass --store-tls-ca, the authority of its "
                                           "certificate"));
}

}  // namespace
}  // namespace hearth
