#include "services/serving/access/identity.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/regular_file.h"
#include "services/rpc/access_files.h"
#include "services/rpc/client_access.h"
#include "services/serving/access/server_access.h"
#include "services/store/tenants_file.h"
#include "tests/support/test_certificates.h"

namespace hearth {
namespace {

std::string TokenEntry(const std::string& name, const std::string& role, const std::string& token,
                       const std::string& more = "") {
  return absl::StrCat(R"({"name":")", name, R"(","role":")", role, R"(","token_sha256":")",
                      DigestHex(Sha256(token)), "\"", more, "}");
}
std::string FileOf(const std::string& entries) {
  return absl::StrCat(R"({"identities":[)", entries, "]}");
}
Credentials Token(const std::string& token) { return {{}, token}; }
Credentials Certificate(std::vector<std::string> names) { return {std::move(names), {}}; }

class IdentityTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Identities>> Open(const std::string& text,
                                                   bool certificates = false) {
    Identities::Options options;
    options.file = folder_.Write("identities.json", text);
    options.certificates = certificates;
    options.recheck = absl::ZeroDuration();
    return Identities::Open(options);
  }
  SecretFolder folder_;
};

TEST_F(IdentityTest, NoIdentitiesFileMeansOneTenant) {
  auto identities = Identities::Open({});
  ASSERT_TRUE(identities.ok());
  const auto caller = (*identities)->Identify(Token("anything"));
  ASSERT_TRUE(caller.ok());
  EXPECT_EQ(*caller->TenantOf(""), "default");
  EXPECT_EQ(*caller->TenantOf("default"), "default");
  EXPECT_EQ(caller->TenantOf("b").status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(IdentityTest, OnlyWorkersNameOtherTenants) {
  auto identities = Open(FileOf(TokenEntry("b", "tenant", "tb") + "," +
                                TokenEntry("c", "tenant", "tc", R"(,"tenant":"shared")") + "," +
                                TokenEntry("w", "worker", "tw")));
  ASSERT_TRUE(identities.ok()) << identities.status();
  const auto b = (*identities)->Identify(Token("tb"));
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(*b->TenantOf(""), "b");
  EXPECT_EQ(*b->TenantOf("b"), "b");
  for (const char* other : {"default", "a", "shared", "public"}) {
    EXPECT_EQ(b->TenantOf(other).status().code(), absl::StatusCode::kPermissionDenied) << other;
  }
  EXPECT_FALSE(b->sees_all());
  EXPECT_EQ(*(*identities)->Identify(Token("tc"))->TenantOf(""), "shared");
  const auto worker = (*identities)->Identify(Token("tw"));
  EXPECT_EQ(*worker->TenantOf("b"), "b");
  EXPECT_EQ(*worker->TenantOf(""), "default");
  EXPECT_TRUE(worker->sees_all());
  for (const std::string& bad : {std::string("a b"), std::string("a\n"), std::string(300, 'x')}) {
    EXPECT_EQ(worker->TenantOf(bad).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// Returns the credentials of a call that names a tenant in its header.
Credentials Naming(Credentials credentials, const std::string& tenant) {
  credentials.tenant = tenant;
  return credentials;
}

TEST_F(IdentityTest, OnlyProxyCertificateNamesTenants) {
  auto identities =
      Open(R"({"public_tenant":"public","identities":[)" + TokenEntry("b", "tenant", "tb") +
               R"(,{"name":"door","role":"proxy","certificate":"door.hearth"},)"
               R"({"name":"w","role":"worker","certificate":"w"},)"
               R"({"name":"p","role":"proxy","certificate":"p","publishes_public":true}]})",
           /*certificates=*/true);
  ASSERT_TRUE(identities.ok()) << identities.status();
  const Credentials door = Certificate({"door.hearth"});
  const auto passed = (*identities)->Identify(Naming(door, "a"));
  ASSERT_TRUE(passed.ok()) << passed.status();
  EXPECT_EQ(*passed->TenantOf(""), "a");
  EXPECT_FALSE(passed->sees_all());
  EXPECT_EQ(passed->TenantOf("b").status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE((*identities)->CheckStillIs(Naming(door, "a"), *passed).ok());
  for (const char* bad : {"", "*", "a b", "a\n", "public"}) {
    const absl::Status refused = (*identities)->Identify(Naming(door, bad)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnauthenticated) << bad;
    EXPECT_TRUE(absl::StrContains(refused.message(), "x-hearth-tenant")) << refused;
  }
  EXPECT_EQ((*identities)->Identify(Naming(Certificate({"p"}), "public"))->tenant, "public");
  EXPECT_FALSE((*identities)->Identify(Naming(Certificate({"p"}), "a"))->publishes_public);
  // A token decides alone, even if a proxy sends it. If a caller is not a proxy, its tenant header
  // is ignored.
  for (const auto& names : {std::vector<std::string>{}, {"door.hearth"}}) {
    EXPECT_EQ((*identities)->Identify({names, "tb", "a"})->tenant, "b");
    EXPECT_FALSE((*identities)->Identify({names, "wrong", "a"}).ok());
  }
  EXPECT_EQ((*identities)->Identify(Naming(Certificate({"w"}), "a"))->tenant, "default");
  EXPECT_FALSE((*identities)->Identify(Naming({}, "a")).ok());
}

TEST_F(IdentityTest, PublicNamespaceNeedsPermission) {
  const std::string may = R"(,"publishes_public":true)";
  auto identities =
      Open(R"({"public_tenant":"public","identities":[)" + TokenEntry("b", "tenant", "tb") + "," +
           TokenEntry("w", "worker", "tw") + "," + TokenEntry("root", "admin", "tr") + "," +
           TokenEntry("bw", "tenant", "tbw", may) + "," + TokenEntry("ww", "worker", "tww", may) +
           "," + TokenEntry("pp", "tenant", "tpp", R"(,"tenant":"public")" + may) + "]}");
  ASSERT_TRUE(identities.ok()) << identities.status();
  for (const char* token : {"tb", "tw", "tr"}) {
    const auto reader = (*identities)->Identify(Token(token));
    EXPECT_EQ(reader->public_tenant, "public");
    EXPECT_EQ(reader->TenantOf("public").status().code(), absl::StatusCode::kPermissionDenied);
  }
  for (const char* token : {"tbw", "tww", "tpp"}) {
    EXPECT_EQ(*(*identities)->Identify(Token(token))->TenantOf("public"), "public");
  }
  EXPECT_EQ(*(*identities)->Identify(Token("tbw"))->TenantOf(""), "bw");
  EXPECT_EQ((*identities)->Identify(Token("tbw"))->TenantOf("b").status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE((*identities)->Identify(Token("tww"))->TenantOf("b").ok());
}

TEST_F(IdentityTest, UnknownCredentialsAreRefused) {
  auto identities = Open(FileOf(TokenEntry("b", "tenant", "tb") +
                                R"(,{"name":"w","role":"worker","certificate":"worker.hearth"})"),
                         /*certificates=*/true);
  ASSERT_TRUE(identities.ok()) << identities.status();
  // The digest itself must not work as a token. An empty token must not match an entry without a
  // token.
  for (const Credentials& wrong :
       {Credentials(), Token(""), Token("tb "), Token(DigestHex(Sha256("tb"))), Certificate({"b"}),
        Certificate({"someone"}), Credentials{{"worker.hearth"}, std::string("wrong")},
        Credentials{{"worker.hearth"}, std::string()}}) {
    const auto refused = (*identities)->Identify(wrong);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnauthenticated);
  }
  EXPECT_EQ((*identities)->Identify(Certificate({"x", "worker.hearth"}))->name, "w");
}

TEST_F(IdentityTest, AmbiguousCertificateIsRefused) {
  auto identities = Open(FileOf(R"({"name":"w","role":"worker","certificate":"w"},)"
                                R"({"name":"b","role":"tenant","certificate":"b"})"),
                         /*certificates=*/true);
  ASSERT_TRUE(identities.ok());
  EXPECT_TRUE((*identities)->Identify(Certificate({"b"})).ok());
  EXPECT_FALSE((*identities)->Identify(Certificate({"b", "w"})).ok());
}

TEST_F(IdentityTest, CertificateNameIsTenantWithoutFile) {
  Identities::Options options;
  options.certificates = true;
  auto identities = Identities::Open(options);
  ASSERT_TRUE(identities.ok());
  const auto caller = (*identities)->Identify(Certificate({"team-b"}));
  ASSERT_TRUE(caller.ok());
  EXPECT_EQ(*caller->TenantOf(""), "team-b");
  EXPECT_FALSE(caller->TenantOf("team-a").ok());
  EXPECT_FALSE((*identities)->Identify(Credentials()).ok());
}

TEST_F(IdentityTest, InvalidIdentitiesFileKeepsPreviousEntries) {
  auto identities = Open(FileOf(TokenEntry("b", "tenant", "old")));
  ASSERT_TRUE(identities.ok());
  EXPECT_TRUE((*identities)->Identify(Token("old")).ok());
  folder_.Write("identities.json", FileOf(TokenEntry("b", "tenant", "new-token")));
  EXPECT_FALSE((*identities)->Identify(Token("old")).ok());
  EXPECT_TRUE((*identities)->Identify(Token("new-token")).ok());
  folder_.Write("identities.json", "{");
  EXPECT_TRUE((*identities)->Identify(Token("new-token")).ok());
}

// The file cannot be read for a moment, because the process has no free descriptor. Afterwards it
// is read again, although it has not changed.
TEST_F(IdentityTest, UnreadableFileIsReadAgain) {
  auto identities = Open(FileOf(TokenEntry("b", "tenant", "old")));
  ASSERT_TRUE(identities.ok());
  folder_.Write("identities.json", FileOf(TokenEntry("b", "tenant", "new-token")));
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool knows_old = (*identities)->Identify(Token("old")).ok();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(knows_old);
  EXPECT_TRUE((*identities)->Identify(Token("new-token")).ok());
}

TEST_F(IdentityTest, ChangedIdentityFailsRecheck) {
  auto identities =
      Open(FileOf(TokenEntry("b", "tenant", "tb") + "," + TokenEntry("c", "tenant", "tc") + "," +
                  TokenEntry("d", "tenant", "td")));
  ASSERT_TRUE(identities.ok());
  const Identity b = *(*identities)->Identify(Token("tb")),
                 c = *(*identities)->Identify(Token("tc"));
  const Identity d = *(*identities)->Identify(Token("td"));
  const uint64_t generation = (*identities)->generation();
  // A new entry and another order of the entries do not change the identity of these callers.
  folder_.Write(
      "identities.json",
      FileOf(TokenEntry("d", "tenant", "td") + "," + TokenEntry("c", "tenant", "tc") + "," +
             TokenEntry("b", "tenant", "tb") + "," + TokenEntry("e", "admin", "te")));
  EXPECT_TRUE((*identities)->CheckStillIs(Token("tb"), b).ok());
  EXPECT_TRUE((*identities)->CheckStillIs(Token("tc"), c).ok());
  EXPECT_EQ((*identities)->generation(), generation + 1);
  folder_.Write("identities.json",
                FileOf(TokenEntry("d", "tenant", "td") + "," +
                       TokenEntry("c", "tenant", "tc", R"(,"tenant":"elsewhere")")));
  EXPECT_EQ((*identities)->CheckStillIs(Token("tb"), b).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ((*identities)->CheckStillIs(Token("tc"), c).code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE((*identities)->CheckStillIs(Token("td"), d).ok());
  EXPECT_EQ((*identities)->generation(), generation + 2);
}

TEST_F(IdentityTest, ChangedFileIsReloadedWithoutCall) {
  Identities::Options options;
  options.file = folder_.Write("identities.json", FileOf(TokenEntry("b", "tenant", "tb")));
  options.recheck = absl::Milliseconds(1);
  auto identities = Identities::Open(options);
  ASSERT_TRUE(identities.ok());
  const Identity was = *(*identities)->Identify(Token("tb"));
  const uint64_t generation = (*identities)->generation();
  folder_.Write("identities.json", FileOf(TokenEntry("b2", "tenant", "another")));
  while ((*identities)->generation() == generation) std::this_thread::yield();
  EXPECT_EQ((*identities)->CheckStillIs(Token("tb"), was).code(),
            absl::StatusCode::kUnauthenticated);
}

TEST_F(IdentityTest, ErrorNamesInvalidEntry) {
  const std::string sha = DigestHex(Sha256("t"));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "must be a JSON object"},
      {FileOf("1"), "identities[0]: must be an object"},
      {FileOf(R"({"name":"a","role":"boss","certificate":"a"})"),
       "must be tenant, worker, admin or proxy; got \"boss\""},
      {FileOf(R"({"name":"a","role":"tenant","token":"secret"})"), "unknown key \"token\""},
      {FileOf(R"({"name":"a","role":"tenant"})"), "needs token_sha256 or certificate"},
      {FileOf(R"({"name":"a","role":"tenant","token_sha256":"12"})"), "64 hex digits"},
      {FileOf(TokenEntry("a", "proxy", "t")), "a proxy needs a certificate"},
      {FileOf(TokenEntry("a", "proxy", "t", R"(,"certificate":"c")")),
       "must not have token_sha256"},
      {FileOf(R"({"name":"a b","role":"tenant","certificate":"a"})"), "tenant: a name must have"},
      {FileOf(TokenEntry("a", "tenant", "")),
       "identities[0].token_sha256: is the digest of an empty token, as sha256sum gives for a "
       "missing or empty file"},
      {FileOf(TokenEntry("a", "tenant", "1") + "," + TokenEntry("a", "tenant", "2")),
       "identities[1].name"},
      {FileOf(TokenEntry("a", "tenant", "1") + "," + TokenEntry("b", "tenant", "1")),
       "identities[1].token_sha256: must be unique"},
      {FileOf(R"({"name":"a","role":"tenant","certificate":"c"},)"
              R"({"name":"b","role":"tenant","certificate":"c"})"),
       "identities[1].certificate: must be unique"},
      {R"({"identities":[],"public":"p"})", "\"public\" is an unknown key"},
      {R"({"identities":[],"public_tenant":"a b"})", "tenant: a name must have"},
      {R"({"identities":[],"public_tenant":"*"})", "\"*\" means all tenants"},
      {R"({"identities":[],"public_tenant":7})", "public_tenant: must be text"},
      {FileOf(TokenEntry("a", "tenant", "1", R"(,"publishes_public":true)")),
       "publishes_public: the file has no"},
      {FileOf(TokenEntry("a", "tenant", "1", R"(,"publishes_public":1)")),
       "publishes_public: must be true or false"},
      {R"({"public_tenant":"p","identities":[)" +
           TokenEntry("a", "tenant", "1", R"(,"tenant":"p")") + "]}",
       "its tenant is the public tenant"},
      {FileOf(R"({"role":"tenant","certificate":"a"})"), "identities[0].name"},
      {FileOf(R"({"name":7,"role":"tenant","certificate":"a"})"), ".name: must be text"}};
  for (const auto& [text, part] : cases) {
    const auto refused = Open(text);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_TRUE(absl::StrContains(refused.status().message(), part)) << refused.status();
    EXPECT_TRUE(absl::StrContains(refused.status().message(), "identities.json"));
  }
}

TEST_F(IdentityTest, CleartextTokensAreRefused) {
  AccessFlags flags;
  flags.identities_file = folder_.Write("i.json", FileOf(TokenEntry("b", "tenant", "tb")));
  EXPECT_TRUE(OpenAccess(flags, "127.0.0.1:0").ok());
  EXPECT_TRUE(OpenAccess(flags, "unix:/run/hearth.sock").ok());
  const auto refused = OpenAccess(flags, "0.0.0.0:7080");
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "clear text")) << refused.status();
  flags.plaintext_tokens = true;
  EXPECT_TRUE(OpenAccess(flags, "0.0.0.0:7080").ok());

  ClientAccess client;
  client.token_file = folder_.Write("token", "tb\n");
  EXPECT_TRUE(ConnectAs(client, "127.0.0.1:1", {}).ok());
  EXPECT_FALSE(ConnectAs(client, "store:7080", {}).ok());
  EXPECT_FALSE(ConnectAs(client, "127.evil.example:7080", {}).ok());
  client.plaintext_tokens = true;
  EXPECT_TRUE(ConnectAs(client, "store:7080", {}).ok());
}

TEST_F(IdentityTest, EndlessFilesAreRefused) {
  const std::string small = folder_.Write("small", "12345");
  const std::string fifo = small + ".fifo", link = small + ".link";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  ASSERT_EQ(symlink(small.c_str(), link.c_str()), 0);
  EXPECT_EQ(*ReadBoundedFile(link, 5), "12345");
  EXPECT_FALSE(ReadBoundedFile(small, 4).ok());
  EXPECT_FALSE(ReadBoundedFile("/dev/zero", 1000, /*pipes_too=*/true).ok());
  EXPECT_EQ(*ReadBoundedFile("/dev/null", 1000, /*pipes_too=*/true), "");
  for (const std::string& endless : {fifo, std::string("/dev/zero"), std::string("/tmp")}) {
    Identities::Options options;
    options.file = endless;
    for (const absl::Status& status :
         {Identities::Open(options).status(), ReadTenantsFile(endless).status(),
          ReadTlsFiles({"tls-cert", endless, "tls-key", endless, "", ""}).status()}) {
      EXPECT_TRUE(absl::StrContains(status.message(), endless + " is not a regular file"))
          << status;
    }
  }
}

TEST_F(IdentityTest, ErrorNamesMissingPartnerFlag) {
  AccessFlags flags;
  flags.tls_cert = "cert.pem";
  EXPECT_TRUE(absl::StrContains(OpenAccess(flags, "127.0.0.1:0").status().message(), "--tls-key"));
  flags = {};
  flags.tls_client_ca = "ca.pem";
  EXPECT_TRUE(absl::StrContains(OpenAccess(flags, "127.0.0.1:0").status().message(), "--tls-cert"));
  ClientAccess client;
  client.prefix = "store-";
  client.tls_ca = "/nowhere/ca.pem";
  EXPECT_TRUE(absl::StrContains(ConnectAs(client, "h:1", {}).status().message(), "--store-tls-ca"));
  client.token_file = folder_.Write("token", "two words");
  client.tls_ca = "";
  client.plaintext_tokens = true;
  EXPECT_TRUE(
      absl::StrContains(ConnectAs(client, "h:1", {}).status().message(), "--store-token-file"));
}

}  // namespace
}  // namespace hearth
