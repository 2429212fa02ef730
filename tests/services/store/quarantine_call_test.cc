// Quarantine over gRPC: which callers may use it, and that the log names the publishers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "services/store/store_metrics.h"
#include "tests/services/store/store_peer.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class QuarantineCallTest : public TenantsFixture {
 protected:
  static v1::QuarantineRequest Of(const std::string& tenant) {
    v1::QuarantineRequest request;
    *request.mutable_prefix() = PrefixOf(kPrompt);
    request.mutable_prefix()->set_tenant(tenant);
    ToProto(ObjectId{0, 16, LayerGroup::kGlobal}, request.add_objects());
    return request;
  }
  static std::string Ask(Peer* peer, const std::string& tenant) {
    return peer->Unary(&v1::CacheStore::Stub::Quarantine, Of(tenant));
  }
};

TEST_F(QuarantineCallTest, WorkerQuarantinesForNamedTenant) {
  StoreServer server(options_, access_);
  Peer worker(server, As("worker"));
  v1::Prefix prefix = PrefixOf(kBoundary);
  prefix.set_tenant("a");
  ASSERT_THAT(worker.Publish(prefix, 1), HasSubstr("boundaries: 40"));
  EXPECT_THAT(Ask(&worker, "b"), HasSubstr("status 5")) << "nothing of b's is there";
  testing::internal::CaptureStderr();
  EXPECT_THAT(Ask(&worker, "a"), AllOf(HasSubstr("objects: 1"), HasSubstr("status 0")));
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_THAT(logged, AllOf(HasSubstr("quarantined"), HasSubstr("tenant=a"),
                            HasSubstr("publisher=worker"), HasSubstr("auditor=worker")));
  v1::ExplainRequest explain;
  *explain.mutable_prefix() = PrefixOf(kPrompt);
  Peer a(server, As("a"));
  EXPECT_THAT(a.Unary(&v1::CacheStore::Stub::Explain, explain), HasSubstr("quarantined"));
  for (const MetricSample& sample : StoreSamples(server.store()->Stats())) {
    for (const auto& [name, value] : sample.labels) EXPECT_THAT(value, Not(HasSubstr("worker")));
  }
}

TEST_F(QuarantineCallTest, TenantIsDenied) {
  StoreServer server(options_, access_);
  Peer a(server, As("a"));
  a.Publish(PrefixOf(kBoundary), 1);
  EXPECT_THAT(Ask(&a, ""), AllOf(HasSubstr("status 7"), HasSubstr("workers and administrators")));
  EXPECT_EQ(a.FirstId().size(), 32u);
}

}  // namespace
}  // namespace hearth
