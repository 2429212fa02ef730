// The public namespace: all callers read it, and only permitted callers write it.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/services/store/store_peer.h"

namespace hearth {
namespace {

constexpr char kDenied[] = "status 7 ";

v1::Prefix PrefixFor(const std::string& tenant) {
  v1::Prefix prefix = PrefixOf(kBoundary);
  prefix.set_tenant(tenant);
  return prefix;
}

bool Says(const std::string& told, const std::string& part) {
  return told.find(part) != std::string::npos;
}

class PublicTenantTest : public TenantsFixture {
 protected:
  PublicTenantTest()
      : TenantsFixture(R"("public_tenant":"public",)", R"(,"publishes_public":true)") {}

  static v1::FetchRequest FetchOf(const std::string& tenant) {
    v1::FetchRequest fetch;
    *fetch.mutable_prefix() = PrefixOf(kPrompt);
    fetch.mutable_prefix()->set_tenant(tenant);
    return fetch;
  }
};

class NoPublicTenantTest : public TenantsFixture {};

TEST_F(PublicTenantTest, PublicPointsServeAllTenants) {
  StoreServer server(options_, access_);
  Peer a(server, As("a")), writer(server, As("writer")), worker(server, As("worker"));
  EXPECT_FALSE(Says(a.Fetch(FetchOf("")), "usable_tokens"));
  ASSERT_TRUE(Says(writer.Publish(PrefixFor("public"), 1), "boundaries: 40"));
  for (const std::string& told : {a.Fetch(FetchOf("")), worker.Fetch(FetchOf("b"))}) {
    EXPECT_TRUE(Says(told, "usable_tokens: 40")) << told;
    EXPECT_TRUE(Says(told, "from_public: true")) << told;
  }
  EXPECT_EQ(a.FirstId(), "") << "reading leaves nothing behind";
  v1::ExplainRequest explain;
  *explain.mutable_prefix() = PrefixOf(kPrompt);
  const std::string told = a.Unary(&v1::CacheStore::Stub::Explain, explain);
  EXPECT_TRUE(Says(told, "from_public: true")) << told;
  EXPECT_TRUE(Says(told, "public namespace \\\"public\\\"")) << told;
  EXPECT_FALSE(Says(told, "restore_point_id")) << told;
  // If a prefix is in both namespaces, the tenant's own prefix is used.
  ASSERT_TRUE(Says(a.Publish(PrefixOf(kBoundary), 2), "boundaries: 40"));
  EXPECT_FALSE(Says(a.Fetch(FetchOf("")), "from_public"));
}

TEST_F(PublicTenantTest, OnlyPermittedCallersPublish) {
  StoreServer server(options_, access_);
  Peer writer(server, As("writer"));
  ASSERT_TRUE(Says(writer.Publish(PrefixFor("public"), 1), "boundaries: 40"));
  v1::StatsRequest stats;
  stats.set_tenant("public");
  EXPECT_TRUE(Says(writer.Unary(&v1::CacheStore::Stub::Stats, stats), "restore_points: 1"));
  EXPECT_EQ(writer.FirstId(), "") << "its own tenant is another one";
  // A tenant may not report either; a report names no tenant.
  const std::pair<const char*, size_t> callers[] = {{"a", 14}, {"worker", 13}, {"root", 13}};
  for (const auto& [name, calls] : callers) {
    Peer peer(server, As(name));
    EXPECT_TRUE(Says(peer.Publish(PrefixFor("public"), 2), kDenied)) << name;
    const std::string told = peer.AskEverything(std::string(32, 'x'), "public");
    size_t denied = 0;
    for (size_t at = told.find(kDenied); at != std::string::npos; at = told.find(kDenied, at + 1)) {
      ++denied;
    }
    EXPECT_EQ(denied, calls) << name << ": " << told;
  }
}

// A caller that reads a public prefix must not see that others have read it.
TEST_F(PublicTenantTest, ReadsByOthersAreInvisible) {
  StoreServer used(options_, access_), unused(options_, access_);
  for (StoreServer* server : {&used, &unused}) {
    ASSERT_TRUE(
        Says(Peer(*server, As("writer")).Publish(PrefixFor("public"), 1), "boundaries: 40"));
  }
  Peer b(used, As("b"));
  for (int i = 0; i < 3; ++i) b.Fetch(FetchOf(""));
  b.Publish(PrefixOf(kBoundary), 1);
  const std::string id(32, 'x');
  EXPECT_EQ(Peer(used, As("a")).AskEverything(id), Peer(unused, As("a")).AskEverything(id));
}

TEST_F(NoPublicTenantTest, TenantNamedPublicIsOrdinary) {
  StoreServer server(options_, access_);
  Peer a(server, As("a")), worker(server, As("worker"));
  EXPECT_TRUE(Says(worker.Publish(PrefixFor("public"), 1), "boundaries: 40"))
      << "a tenant like any other";
  v1::FetchRequest fetch;
  *fetch.mutable_prefix() = PrefixOf(kPrompt);
  EXPECT_FALSE(Says(a.Fetch(fetch), "usable_tokens"));
}

}  // namespace
}  // namespace hearth
