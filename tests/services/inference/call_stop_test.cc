// Calls to a store that says nothing end when nobody waits for them any longer.

#include "worker/prefix/call_stop.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/transport_options.h"
#include "tests/services/inference/scripted_store.h"
#include "tests/services/store/small_layout.h"

namespace hearth {
namespace {

TEST(CallStopTest, EndsEachCallOnceAndThoseThatComeLaterAtOnce) {
  const auto stop = std::make_shared<CallStop>();
  int first = 0, second = 0, third = 0;
  const CallStop::Call one(stop, [&] { ++first; });
  {
    const CallStop::Call over(stop, [&] { ++second; });
  }
  stop->Stop();
  stop->Stop();
  const CallStop::Call late(stop, [&] { ++third; });
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 0);
  EXPECT_EQ(third, 1);
  EXPECT_TRUE(stop->stopped());
  const CallStop::Call nobody(nullptr, [] { FAIL(); });
}

TEST(CallStopTest, ASilentStoresFetchAndLeaseReturn) {
  ScriptedStore store;
  absl::Notification fetching, leasing;
  const auto until_given_up = [](grpc::ServerContext* context, absl::Notification* asked) {
    asked->Notify();
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  store.fetch = [&](grpc::ServerContext* context, auto&, auto*) {
    return until_given_up(context, &fetching);
  };
  store.lease = [&](grpc::ServerContext* context, auto*) {
    return until_given_up(context, &leasing);
  };
  CacheCounters counters;
  RemotePrefixCache cache(ConnectToStore(store.address()), SmallFingerprint(), SmallLayout(),
                          &counters);
  PrefixRequest prefix;
  prefix.token_ids = CountingTokens(40);
  prefix.tenant = "default";
  const auto stopped_when = [&](absl::Notification* asked) {
    prefix.stop = std::make_shared<CallStop>();
    return std::thread([asked, stop = prefix.stop] {
      asked->WaitForNotification();
      stop->Stop();
    });
  };
  std::thread stopper = stopped_when(&fetching);
  EXPECT_EQ(cache.Fetch(prefix, 0, 39, absl::InfiniteFuture()).usable_tokens, 0u);
  stopper.join();
  stopper = stopped_when(&leasing);
  const LeaseTerms terms{absl::Hours(1), absl::Hours(1), 1};
  EXPECT_EQ(cache.Lease(prefix, 0, 39, terms, absl::InfiniteFuture()).lease, nullptr);
  stopper.join();
  const std::map<std::string, uint64_t> once = {{"cancelled", 1}};
  EXPECT_EQ(counters.Read().fetches, once) << "the store was not late: the caller left";
  EXPECT_EQ(counters.Read().leases, once);
}

}  // namespace
}  // namespace hearth
