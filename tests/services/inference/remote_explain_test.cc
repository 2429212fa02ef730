// An explanation under way when the worker's cache goes.
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/transport_options.h"
#include "tests/services/inference/scripted_store.h"
#include "tests/services/store/small_layout.h"

namespace hearth {
namespace {

// gRPC's own thread must not be the last to hold the channel: it aborts then, now and then.
TEST(RemoteExplainTest, EndsWithTheCache) {
  ScriptedStore store;
  absl::Notification asked, answer;
  store.explain = [&](const v1::ExplainRequest&, v1::ExplainResponse*) {
    asked.Notify();
    answer.WaitForNotification();
    return grpc::Status::OK;
  };
  CacheCounters counters;
  auto cache = std::make_unique<RemotePrefixCache>(ConnectToStore(store.address()),
                                                   SmallFingerprint(), SmallLayout(), &counters);
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
}

}  // namespace
}  // namespace hearth
