// The answers to one tenant must not reveal the data of other tenants.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/store/store_metrics.h"
#include "services/store/store_status.h"
#include "services/store/tenants_file.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/store_peer.h"

namespace hearth {
namespace {

class TenantsTest : public TenantsFixture {};

TEST_F(TenantsTest, OtherTenantsPointsAreInvisible) {
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
  // The same prompt, with bytes that differ from tenant a's. It is no contradiction of a's data,
  // and is not already stored.
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

// Tenant b gets the same answers about a prompt of tenant a and about a prompt of no tenant.
TEST_F(TenantsTest, StoredAndMissingPromptsLookAlike) {
  StoreServer server(options_, access_);
  Peer a(server, As("a")), b(server, As("b"));
  a.Publish(PrefixOf(kBoundary), /*salt=*/1);
  a.Publish(PrefixOf(kBoundary, "other weights"), 1);
  const std::string id = a.FirstId(), nobodys(32, 'x');
  ASSERT_EQ(id.size(), 32u);
  constexpr uint32_t kUnknown = 77;
  b.AskEverything(nobodys);  // this call makes its fingerprint known to the store
  EXPECT_EQ(b.AskEverything(id), b.AskEverything(nobodys, "", kUnknown));
  EXPECT_EQ(b.AskEverything(id, "a"), b.AskEverything(nobodys, "a", kUnknown));
  EXPECT_EQ(b.Publish(PrefixOf(kBoundary), 2), b.Publish(PrefixOf(kBoundary, "a", kUnknown), 2));
  EXPECT_NE(a.AskEverything(id), b.AskEverything(id)) << "the comparison sees a difference";
}

// Tenant b has a quota of bytes that may be pinned. Tenant a has none, and pins all remaining
// bytes.
TEST_F(TenantsTest, OtherTenantsPinsAreInvisible) {
  constexpr uint64_t kPointBytes = 5632;
  options_.host_bytes = 64 << 10;
  options_.count_points = false;
  options_.quotas.by_tenant["b"].max_pinned_bytes = 2 * kPointBytes;
  StoreServer with_a(options_, access_), without(options_, access_);
  Peer a(with_a, As("a")), b_beside(with_a, As("b")), b_alone(without, As("b"));
  const auto publish_and_pin = [](Peer* peer, uint32_t first) {
    std::string told = peer->Publish(PrefixOf(kBoundary, "a", first), 1);
    return told + peer->Pin(peer->FirstId());
  };
  std::string last;
  for (uint32_t first = 100; first < 104; ++first) last = publish_and_pin(&a, first);
  ASSERT_NE(last.find("status 8 pinning 5632 bytes more would exceed"), std::string::npos) << last;
  for (uint32_t first = 200; first < 203; ++first) {
    const std::string beside = publish_and_pin(&b_beside, first);
    EXPECT_EQ(beside, publish_and_pin(&b_alone, first));
    EXPECT_NE(beside.find(first < 202 ? "status 0" : "status 8 quota: a pin of 5632 bytes"),
              std::string::npos)
        << beside;
  }
  EXPECT_EQ(b_beside.List(), b_alone.List());
}

// Tokens are the tenant's own text, which an administrator of the store must not read.
TEST_F(TenantsTest, WatchHidesTokensFromAdmins) {
  StoreServer server(options_, access_);
  const auto told = [&](const std::string& name, bool with_chunks = true) {
    return Peer(server, As(name)).Watch("a", with_chunks);
  };
  EXPECT_EQ(told("a").find("status"), std::string::npos);
  EXPECT_EQ(told("worker").find("status"), std::string::npos);
  EXPECT_NE(told("b").find("status 7"), std::string::npos);
  EXPECT_NE(told("root").find("status 7 with_chunks"), std::string::npos) << told("root");
  EXPECT_EQ(told("root", false).find("status"), std::string::npos);
}

TEST_F(TenantsTest, EveryRpcIsTested) {
  const std::set<std::string> asked = {"Fetch", "Lease", "Publish",    "Explain",
                                       "Pin",   "Unpin", "Drop",       "List",
                                       "Stats", "Watch", "Quarantine", "Report"};
  const auto* service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("hearth.v1.CacheStore");
  ASSERT_NE(service, nullptr);
  std::set<std::string> all;
  for (int i = 0; i < service->method_count(); ++i) all.insert(service->method(i)->name());
  EXPECT_EQ(all, asked) << "Peer::AskEverything is to ask it too";
}

TEST_F(TenantsTest, MetricsAndPagesNameNoTenant) {
  StoreServer server(options_, access_);
  Peer worker(server, As("worker"));
  v1::Prefix prefix = PrefixOf(kBoundary, "a", /*first=*/424242);
  prefix.set_tenant("zebra");
  ASSERT_NE(worker.Publish(prefix, 1).find("boundaries: 40"), std::string::npos);
  const StoreStats stats = server.store()->Stats();
  v1::ReportRequest report = KitReport();
  report.set_name("yak");
  report.mutable_models(0)->set_name("gnu");
  ASSERT_EQ(worker.Unary(&v1::CacheStore::Stub::Report, report), "status 0 \n");
  const FleetTable* const fleet = server.service()->fleet();
  ASSERT_EQ(fleet->Workers().size(), 1u);
  std::string shown =
      StatusFigures("hearth-store", "test", StoreFigures(server.store(), fleet)).JsonText();
  std::vector<MetricSample> samples = StoreSamples(stats);
  for (MetricSample& sample : FleetSamples(fleet->Totals())) samples.push_back(std::move(sample));
  for (const MetricSample& sample : samples) {
    absl::StrAppend(&shown, "\n", sample.name, sample.help);
    for (const auto& [name, value] : sample.labels) absl::StrAppend(&shown, name, "=", value);
  }
  for (const HistogramSample& sample : StoreHistograms(stats)) {
    absl::StrAppend(&shown, "\n", sample.name, sample.help);
    for (const auto& [name, value] : sample.labels) absl::StrAppend(&shown, name, "=", value);
  }
  EXPECT_NE(shown.find("hearth_store_restore_points"), std::string::npos);
  EXPECT_NE(shown.find("hearth_store_workers"), std::string::npos);
  for (const char* name : {"zebra", "yak", "gnu"}) {
    EXPECT_EQ(shown.find(name), std::string::npos) << shown;
  }
  EXPECT_EQ(shown.find("424242"), std::string::npos) << shown;
  EXPECT_EQ(shown.find("tenant="), std::string::npos) << shown;
}

TEST_F(TenantsTest, TenantStreamsLeaveRoomForOthers) {
  StoreServer server(options_, access_);
  const auto b = v1::CacheStore::NewStub(ConnectedTo(server.address(), As("b")));
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchEvent>>> watches;
  v1::WatchEvent event;
  for (int i = 0; i < kWatchLimit.all / 2; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    watches.push_back(b->Watch(contexts.back().get(), {}));
    ASSERT_TRUE(watches.back()->Read(&event));
  }
  const std::string refused = Peer(server, As("b")).Watch();
  EXPECT_NE(refused.find("status 8 watch: tenant \"b\" has 32 open streams"), std::string::npos)
      << refused;
  EXPECT_NE(refused.find("retry-after-ms"), std::string::npos) << refused;
  EXPECT_EQ(Peer(server, As("a")).Watch().find("status"), std::string::npos);
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& watch : watches) watch->Finish();
}

// One tenant opens and holds its maximum number of publishes.
TEST_F(TenantsTest, TenantPublishesLeaveRoomForOthers) {
  StoreServer server(options_, access_);
  const auto loud = v1::CacheStore::NewStub(ConnectedTo(server.address(), As("b")));
  v1::PublishRequest begin;
  *begin.mutable_begin()->mutable_prefix() = PrefixOf(kBoundary);
  begin.mutable_begin()->add_boundaries(kBoundary);
  for (const auto& object : SmallObjects(kBoundary)) {
    v1::ObjectRef* ref = begin.mutable_begin()->add_objects();
    ToProto(object->id, ref);
    for (uint64_t digest : object->slice_digests) ref->add_slice_digests(digest);
  }
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::PublishRequest, v1::PublishResponse>>>
      held;
  for (int i = 0; i < 100; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    held.push_back(loud->Publish(contexts.back().get()));
    v1::PublishResponse plan;
    const bool has_place = held.back()->Write(begin) && held.back()->Read(&plan);
    EXPECT_EQ(has_place, i < kPublishLimit.all / 2) << i;
  }
  Peer quiet(server, As("a"));
  for (uint8_t salt = 1; salt <= 10; ++salt) {
    const std::string told = quiet.Publish(PrefixOf(kBoundary, "a", kFirstToken + salt), salt);
    EXPECT_NE(told.find("boundaries: 40"), std::string::npos) << told;
    EXPECT_NE(told.find("status 0"), std::string::npos) << told;
  }
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& call : held) call->Finish();
}

TEST_F(TenantsTest, WorkerPublishesForTenant) {
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

TEST_F(TenantsTest, WholeStoreStatisticsNeedPrivilege) {
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

TEST_F(TenantsTest, SharedMemoryNeedsWorkerRole) {
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

TEST_F(TenantsTest, MissingCredentialsAreUnauthenticated) {
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
    EXPECT_EQ(refused, 15u) << told;
  }
}

// If the identities file loses or changes a caller, the caller's streams end.
TEST_F(TenantsTest, RemovedIdentityEndsStreams) {
  StoreServer server(options_, access_);
  const auto stub_of = [&](const std::string& name) {
    return v1::CacheStore::NewStub(ConnectedTo(server.address(), As(name)));
  };
  const auto a = stub_of("a"), b = stub_of("b"), worker = stub_of("worker"), root = stub_of("root");
  v1::LeaseRequest lease;
  *lease.mutable_prefix() = PrefixOf(kPrompt);
  lease.mutable_prefix()->set_tenant("a");
  lease.set_min_tokens(16);
  lease.set_lease_ms(600000);
  lease.set_wait_ms(600000);
  grpc::ClientContext watching_a, watching_b, holding, waiting;
  const auto watch_a = a->Watch(&watching_a, {}), watch_b = b->Watch(&watching_b, {});
  v1::WatchEvent event;
  // Before the file changes, the store must have admitted both watches.
  ASSERT_TRUE(watch_a->Read(&event));
  ASSERT_TRUE(watch_b->Read(&event));
  const auto holder = worker->Lease(&holding, lease);
  v1::LeaseResponse turn;
  ASSERT_TRUE(holder->Read(&turn));
  ASSERT_EQ(turn.turn(), v1::LeaseResponse::COMPUTE);
  const auto waiter =
      root->Lease(&waiting, lease);  // asks only now, because the first caller that asks computes
  ASSERT_TRUE(waiter->Read(&turn));
  ASSERT_EQ(turn.turn(), v1::LeaseResponse::WAIT);
  folder_.Write("identities.json",
                absl::StrCat(R"({"identities":[)", Entry("a", "tenant", R"(,"tenant":"a2")"), ",",
                             Entry("root", "admin"), "]}"));
  ASSERT_TRUE(waiter->Read(&turn));
  EXPECT_EQ(turn.turn(), v1::LeaseResponse::COMPUTE) << "the worker was sent away";
  EXPECT_FALSE(holder->Read(&turn));
  EXPECT_EQ(holder->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  while (watch_a->Read(&event) || watch_b->Read(&event)) {
  }
  const grpc::Status moved = watch_a->Finish();
  EXPECT_EQ(moved.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_NE(moved.error_message().find("\"a\" changed in the server"), std::string::npos);
  EXPECT_EQ(watch_b->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  waiting.TryCancel();
  waiter->Finish();
}

// RFC 9110: the case of the scheme does not matter. A header with any other scheme is not a token.
TEST_F(TenantsTest, OnlyBearerSchemeIsAccepted) {
  StoreServer server(options_, access_);
  const auto list_with = [&](const std::vector<std::string>& headers) {
    grpc::ClientContext context;
    for (const std::string& header : headers) context.AddMetadata("authorization", header);
    const auto reader = server.stub()->List(&context, {});
    v1::RestorePointInfo point;
    while (reader->Read(&point)) {
    }
    return reader->Finish().error_code();
  };
  for (const char* good : {"Bearer token-a", "bearer token-a", "BEARER  token-a"}) {
    EXPECT_EQ(list_with({good}), grpc::StatusCode::OK) << good;
  }
  for (const char* bad :
       {"", "Basic x", "Basic token-a", "token-a", "Bearer", "Bearer ", "Bearer  ", "Bearertoken-a",
        "Bearer token-a token-a", "Digest Bearer token-a"}) {
    EXPECT_EQ(list_with({bad}), grpc::StatusCode::UNAUTHENTICATED) << "\"" << bad << "\"";
  }
  EXPECT_EQ(list_with({"Bearer token-a", "Basic x"}), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(TenantsTest, CertificateIdentifiesTenant) {
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
  // If another authority signed the certificate, the handshake fails.
  EXPECT_NE(Peer(server, as(&stranger, "c")).List().find("status 14"), std::string::npos);
}

TEST_F(TenantsTest, ErrorNamesTenantsFileMistake) {
  const auto read = [&](const std::string& text) {
    return ReadTenantsFile(folder_.Write("tenants.json", text));
  };
  const auto quotas = read(R"({"default": {"max_objects": 7},
    "tenants": {"b": {"max_bytes": "2KiB", "floor_bytes": 1024, "max_pinned_bytes": "1KiB",
                     "default_ttl_s": 90, "max_ttl_s": "36h"}}})");
  ASSERT_TRUE(quotas.ok()) << quotas.status();
  EXPECT_EQ(quotas->Of("b").max_bytes, 2048u);
  EXPECT_EQ(quotas->Of("b").floor_bytes, 1024u);
  EXPECT_EQ(quotas->Of("b").default_ttl_s, 90u);
  EXPECT_EQ(quotas->Of("b").max_ttl_s, 36u * 3600);
  EXPECT_EQ(quotas->Of("b").max_objects, 0u) << "an entry stands for itself";
  EXPECT_EQ(quotas->Of("a").max_objects, 7u);
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"[", "must be JSON"},
      {R"({"tenant": {}})", "\"tenant\" is not valid"},
      {R"({"default": {"max_byte": 1}})", "default: unknown key \"max_byte\""},
      {R"({"tenants": {"b": {"max_bytes": -1}}})", "tenants.b.max_bytes: must be"},
      {R"({"tenants": {"b": {"max_bytes": "many"}}})", "tenants.b.max_bytes: must be"},
      {R"({"tenants": {"b": {"max_ttl_s": "1KiB"}}})",
       "tenants.b.max_ttl_s: must be whole seconds"},
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
