// What one tenant stored must not show in anything that another is told.
#include <gtest/gtest.h>

#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/client_access.h"
#include "services/proto_conversion.h"
#include "services/tenants_file.h"
#include "tests/services/small_layout.h"
#include "tests/services/store_server.h"
#include "tests/support/test_certificates.h"

namespace hearth {
namespace {

constexpr uint32_t kBoundary = 40;
constexpr uint32_t kPrompt = 64;

v1::Prefix PrefixOf(uint32_t tokens, const std::string& weights = "a") {
  v1::Prefix prefix;
  ToProto(SmallFingerprint(weights), prefix.mutable_fingerprint());
  for (uint32_t id : CountingTokens(tokens)) prefix.add_token_ids(id);
  if (tokens > kBoundary) prefix.add_cuts(kBoundary);
  return prefix;
}

// One peer of the store. What each call is answered, as text; times and what differs between any
// two stores are left out.
class Peer {
 public:
  Peer(const StoreServer& server, const ClientAccess& access)
      : stub_(v1::CacheStore::NewStub(*ConnectAs(access, server.address(), ClientTransport()))) {}

  std::string Fetch(const v1::FetchRequest& request) {
    grpc::ClientContext context;
    const auto reader = stub_->Fetch(&context, request);
    return ReadAll<v1::FetchResponse>(reader.get());
  }
  std::string Publish(const v1::Prefix& prefix, uint8_t salt) {
    grpc::ClientContext context;
    const auto call = stub_->Publish(&context);
    v1::PublishRequest message;
    v1::PublishBegin* begin = message.mutable_begin();
    *begin->mutable_prefix() = prefix;
    begin->add_boundaries(kBoundary);
    std::vector<std::shared_ptr<const KvObject>> objects;
    for (const auto& object : SmallObjects(kBoundary)) {
      objects.push_back(ObjectOf(SmallLayout(), object->id, salt));
      v1::ObjectRef* ref = begin->add_objects();
      ToProto(object->id, ref);
      for (uint64_t digest : objects.back()->slice_digests) ref->add_slice_digests(digest);
    }
    std::string told;
    v1::PublishResponse response;
    call->Write(message);
    if (call->Read(&response)) {
      told += response.DebugString();
      for (uint32_t index : response.plan().needed()) {
        const std::byte* from = objects[index]->bytes.get();
        const size_t bytes = SmallLayout().SliceBytes(objects[index]->id.tokens);
        for (uint32_t layer : SmallLayout().LayersOf(objects[index]->id.group)) {
          message.mutable_slice()->set_object(index);
          message.mutable_slice()->set_layer(layer);
          message.mutable_slice()->set_data(from, bytes);
          call->Write(message);
          from += bytes;
        }
      }
      message.mutable_commit();
      call->Write(message);
      if (call->Read(&response)) told += response.DebugString();
    }
    return told + Ended(call->Finish(), context);
  }
  template <typename Request, typename Response>
  std::string Unary(grpc::Status (v1::CacheStore::Stub::*method)(grpc::ClientContext*,
                                                                 const Request&, Response*),
                    const Request& request) {
    grpc::ClientContext context;
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    return Plain(response.DebugString()) + Ended(status, context);
  }
  std::string List(const std::string& tenant = "") {
    grpc::ClientContext context;
    v1::ListRequest request;
    request.set_tenant(tenant);
    const auto reader = stub_->List(&context, request);
    return ReadAll<v1::RestorePointInfo>(reader.get());
  }
  std::string FirstId() {
    grpc::ClientContext context;
    const auto reader = stub_->List(&context, {});
    v1::RestorePointInfo point;
    reader->Read(&point);
    context.TryCancel();
    return point.restore_point_id();
  }
  // Up to the end of the snapshot.
  std::string Watch(const std::string& tenant = "") {
    grpc::ClientContext context;
    v1::WatchRequest request;
    request.set_tenant(tenant);
    const auto reader = stub_->Watch(&context, request);
    std::string told;
    v1::WatchEvent event;
    while (reader->Read(&event)) {
      told += Plain(event.DebugString());
      if (event.kind() != v1::WatchEvent::SNAPSHOT_END) continue;
      context.TryCancel();
      return told;
    }
    return told + Ended(reader->Finish(), context);
  }
  // Everything a caller can ask about a prompt and a restore point, and what it is told.
  std::string AskEverything(const std::string& id, const std::string& tenant = "") {
    v1::FetchRequest fetch, by_id;
    *fetch.mutable_prefix() = PrefixOf(kPrompt);
    fetch.mutable_prefix()->set_tenant(tenant);
    by_id.set_restore_point_id(id);
    by_id.set_tenant(tenant);
    v1::ExplainRequest explain, other;
    *explain.mutable_prefix() = fetch.prefix();
    *other.mutable_prefix() = PrefixOf(kPrompt, "other weights");
    other.mutable_prefix()->set_tenant(tenant);
    v1::PinRequest pin;
    pin.set_restore_point_id(id);
    pin.set_tenant(tenant);
    v1::StatsRequest stats;
    stats.set_tenant(tenant);
    v1::DropRequest drop;
    drop.set_restore_point_id(id);
    drop.set_force(true);
    drop.set_tenant(tenant);
    return absl::StrCat("fetch: ", Fetch(fetch), "by id: ", Fetch(by_id),
                        "explain: ", Unary(&v1::CacheStore::Stub::Explain, explain),
                        "other: ", Unary(&v1::CacheStore::Stub::Explain, other),
                        "pin: ", Unary(&v1::CacheStore::Stub::Pin, pin),
                        "unpin: ", Unary(&v1::CacheStore::Stub::Unpin, pin), "list: ", List(tenant),
                        "watch: ", Watch(tenant),
                        "stats: ", Unary(&v1::CacheStore::Stub::Stats, stats),
                        "drop: ", Unary(&v1::CacheStore::Stub::Drop, drop));
  }
  std::string DropAll() {
    v1::DropRequest drop;
    drop.set_all(true);
    drop.set_force(true);
    return Unary(&v1::CacheStore::Stub::Drop, drop);
  }
  void Pin(const std::string& id) {
    v1::PinRequest pin;
    pin.set_restore_point_id(id);
    Unary(&v1::CacheStore::Stub::Pin, pin);
  }

 private:
  static std::string Plain(const std::string& text) {
    static const std::regex kTimes("(age_s|uptime_s|incarnation|removed_s): [^\n]*");
    return std::regex_replace(text, kTimes, "");
  }
  static std::string Ended(const grpc::Status& status, const grpc::ClientContext& context) {
    std::string told = absl::StrCat("status ", status.error_code(), " ", status.error_message());
    for (const auto& [key, value] : context.GetServerTrailingMetadata()) {
      absl::StrAppend(&told, " ", std::string(key.data(), key.size()), "=",
                      std::string(value.data(), value.size()));
    }
    return told + "\n";
  }
  template <typename Message, typename Reader>
  static std::string ReadAll(Reader* reader) {
    std::string told;
    Message message;
    while (reader->Read(&message)) told += Plain(message.DebugString());
    const grpc::Status status = reader->Finish();
    return absl::StrCat(told, "status ", status.error_code(), " ", status.error_message(), "\n");
  }

  const std::unique_ptr<v1::CacheStore::Stub> stub_;
};

class TenantsTest : public testing::Test {
 protected:
  TenantsTest() {
    std::string entries;
    for (const auto& [name, role] : std::vector<std::pair<std::string, std::string>>{
             {"a", "tenant"}, {"b", "tenant"}, {"worker", "worker"}, {"root", "admin"}}) {
      absl::StrAppend(&entries, entries.empty() ? "" : ",", R"({"name":")", name, R"(","role":")",
                      role, R"(","token_sha256":")", DigestHex(Sha256("token-" + name)), "\"}");
    }
    access_.identities_file =
        folder_.Write("identities.json", absl::StrCat(R"({"identities":[)", entries, "]}"));
    options_ = StoreServer::SmallStore("");
    // Equal secrets: a restore point of A's has the same id in any of these stores.
    options_.secret_file = folder_.Write("secret", std::string(64, 'a'));
  }

  ClientAccess As(const std::string& name) {
    ClientAccess access;
    access.token_file = folder_.Write("token-" + name, "token-" + name);
    return access;
  }

  SecretFolder folder_;
  AccessFlags access_;
  StoreOptions options_;
};

TEST_F(TenantsTest, WhatAStoredChangesNothingThatBIsTold) {
  StoreServer with_a(options_, access_);
  StoreServer without(options_, access_);
  Peer a(with_a, As("a"));
  const std::string stored = a.Publish(PrefixOf(kBoundary), /*salt=*/1);
  ASSERT_NE(stored.find("boundaries: 40"), std::string::npos) << stored;
  a.Publish(PrefixOf(kBoundary, "other weights"), 1);
  const std::string id = a.FirstId();
  ASSERT_EQ(id.size(), 32u);
  a.Pin(id);

  Peer b_beside(with_a, As("b")), b_alone(without, As("b"));
  EXPECT_EQ(b_beside.AskEverything(id), b_alone.AskEverything(id));
  EXPECT_EQ(b_beside.AskEverything(id, "a"), b_alone.AskEverything(id, "a"));
  // The same prompt with other bytes: not a contradiction of A's, nor already there.
  const std::string published = b_beside.Publish(PrefixOf(kBoundary), /*salt=*/2);
  EXPECT_EQ(published, b_alone.Publish(PrefixOf(kBoundary), 2));
  EXPECT_NE(published.find("boundaries: 40"), std::string::npos) << published;
  EXPECT_EQ(b_beside.AskEverything(id), b_alone.AskEverything(id));
  const std::string own = b_beside.FirstId();
  EXPECT_NE(own, id);
  EXPECT_EQ(b_beside.AskEverything(own), b_alone.AskEverything(own));
  EXPECT_EQ(b_beside.Publish(PrefixOf(kBoundary), 3), b_alone.Publish(PrefixOf(kBoundary), 3));
  EXPECT_EQ(b_beside.DropAll(), b_alone.DropAll());
  EXPECT_EQ(a.FirstId(), id) << "what is A's outlives all of it";
}

TEST_F(TenantsTest, AWorkerAssertsTheTenantItAuthenticated) {
  StoreServer server(options_, access_);
  Peer worker(server, As("worker")), b(server, As("b"));
  v1::Prefix prefix = PrefixOf(kBoundary);
  prefix.set_tenant("b");
  EXPECT_NE(worker.Publish(prefix, 1).find("boundaries: 40"), std::string::npos);
  EXPECT_EQ(b.FirstId().size(), 32u);
  EXPECT_EQ(worker.FirstId(), "") << "its own tenant is `default`";
  v1::FetchRequest fetch;
  *fetch.mutable_prefix() = PrefixOf(kPrompt);
  EXPECT_NE(b.Fetch(fetch).find("usable_tokens: 40"), std::string::npos);
}

TEST_F(TenantsTest, StoreWideFiguresAreForWorkersAndAdministrators) {
  StoreServer server(options_, access_);
  Peer a(server, As("a")), root(server, As("root"));
  a.Publish(PrefixOf(kBoundary), 1);
  const auto stats = &v1::CacheStore::Stub::Stats;
  EXPECT_NE(root.Unary(stats, v1::StatsRequest()).find("tiers"), std::string::npos);
  const std::string own = a.Unary(stats, v1::StatsRequest());
  EXPECT_EQ(own.find("tiers"), std::string::npos) << own;
  EXPECT_NE(own.find("tenant: \"a\""), std::string::npos) << own;
  EXPECT_NE(own.find("restore_points: 1"), std::string::npos) << own;
  EXPECT_NE(own.find("bytes: "), std::string::npos) << own;
}

TEST_F(TenantsTest, SharedMemoryIsForWorkersOnly) {
  options_.shared_memory = true;
  StoreServer server(options_, access_, absl::StrCat("@hearth-tenants-test-", getpid()));
  Peer b(server, As("b")), worker(server, As("worker"));
  ASSERT_NE(b.Publish(PrefixOf(kBoundary), 1).find("boundaries: 40"), std::string::npos);
  v1::FetchRequest fetch;
  *fetch.mutable_prefix() = PrefixOf(kPrompt);
  fetch.mutable_prefix()->set_tenant("b");
  fetch.set_segment_id("");
  EXPECT_NE(worker.Fetch(fetch).find("socket: "), std::string::npos);
  EXPECT_EQ(b.Fetch(fetch).find("socket: "), std::string::npos);
}

TEST_F(TenantsTest, WithoutCredentialsEveryCallIsUnauthenticated) {
  StoreServer server(options_, access_);
  ClientAccess wrong;
  wrong.token_file = folder_.Write("wrong", "token-of-nobody");
  for (const ClientAccess& access : {ClientAccess(), wrong}) {
    Peer nobody(server, access);
    std::string told =
        nobody.AskEverything(std::string(32, 'x')) + nobody.Publish(PrefixOf(kBoundary), 1);
    size_t refused = 0;
    const std::string status = absl::StrCat("status ", grpc::StatusCode::UNAUTHENTICATED);
    for (size_t at = told.find(status); at != std::string::npos; at = told.find(status, at + 1)) {
      ++refused;
    }
    EXPECT_EQ(refused, 11u) << told;
  }
}

TEST_F(TenantsTest, ACertificateIsAnIdentityToo) {
  TestAuthority authority, stranger;
  const auto server_pem = authority.Issue("store");
  AccessFlags tls;
  tls.tls_cert = folder_.Write("cert", server_pem.certificate);
  tls.tls_key = folder_.Write("key", server_pem.key);
  tls.tls_client_ca = folder_.Write("ca", authority.certificate());
  StoreServer server(options_, tls);
  const auto as = [&](TestAuthority* from, const std::string& name) {
    const auto pem = from->Issue(name);
    ClientAccess access;
    access.tls_ca = tls.tls_client_ca;
    access.tls_cert = folder_.Write("cert-" + name, pem.certificate);
    access.tls_key = folder_.Write("key-" + name, pem.key);
    return access;
  };
  Peer a(server, as(&authority, "a")), b(server, as(&authority, "b"));
  const std::string stored = a.Publish(PrefixOf(kBoundary), 1);
  EXPECT_NE(stored.find("boundaries: 40"), std::string::npos) << stored;
  EXPECT_EQ(a.FirstId().size(), 32u);
  EXPECT_EQ(b.FirstId(), "");
  ClientAccess bare;
  bare.tls_ca = tls.tls_client_ca;
  EXPECT_NE(Peer(server, bare).List().find("status 16"), std::string::npos);
  // Another authority's signature ends the handshake.
  EXPECT_NE(Peer(server, as(&stranger, "c")).List().find("status 14"), std::string::npos);
}

TEST_F(TenantsTest, TheTenantsFileIsReadAndItsMistakesAreNamed) {
  const auto read = [&](const std::string& text) {
    return ReadTenantsFile(folder_.Write("tenants.json", text));
  };
  const auto quotas = read(R"({"default": {"max_objects": 7},
    "tenants": {"b": {"max_bytes": "2KiB", "floor_bytes": 1024, "max_pinned_bytes": "1KiB"}}})");
  ASSERT_TRUE(quotas.ok()) << quotas.status();
  EXPECT_EQ(quotas->Of("b").max_bytes, 2048u);
  EXPECT_EQ(quotas->Of("b").floor_bytes, 1024u);
  EXPECT_EQ(quotas->Of("b").max_objects, 0u) << "an entry stands for itself";
  EXPECT_EQ(quotas->Of("a").max_objects, 7u);
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"[", "must be a JSON object"},
      {R"({"tenant": {}})", "\"tenant\" is neither"},
      {R"({"default": {"max_byte": 1}})", "default: unknown key \"max_byte\""},
      {R"({"tenants": {"b": {"max_bytes": -1}}})", "tenants.b.max_bytes: must be"},
      {R"({"tenants": {"b": {"max_bytes": "many"}}})", "tenants.b.max_bytes: must be"},
      {R"({"tenants": {"b": 3}})", "tenants.b: must be an object"}};
  for (const auto& [text, part] : wrong) {
    const auto refused = read(text);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_NE(std::string(refused.status().message()).find(part), std::string::npos)
        << refused.status();
  }
}

}  // namespace
}  // namespace hearth
