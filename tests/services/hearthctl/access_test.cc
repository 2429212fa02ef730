// hearthctl calls a store that checks identities, with TLS on a TCP connection.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/proto/tiny_snapshot.h"
#include "tests/services/hearthctl/run_cli.h"
#include "tests/services/store/store_server.h"
#include "tests/support/test_certificates.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() {
    const auto server = authority_.Issue("store");
    access_.tls_cert = secrets_.Write("server.pem", server.certificate);
    access_.tls_key = secrets_.Write("server.key", server.key);
    access_.tls_client_ca = secrets_.Write("ca.pem", authority_.certificate());
    access_.identities_file = secrets_.Write(
        "identities.json",
        absl::StrCat(
            R"({"public_tenant": "public", "identities": [)",
            R"({"name": "a", "role": "tenant", "token_sha256": ")", Sha("token-a"), R"("},)",
            R"({"name": "b", "role": "tenant", "certificate": "caller-b"},)",
            R"({"name": "ops", "role": "admin", "publishes_public": true, "token_sha256": ")",
            Sha("token-ops"), R"("}]})"));
    server_ = std::make_unique<StoreServer>(StoreServer::SmallStore(""), access_);
    tiny_ = folder_.Write("tiny.snapshot", TinyFile());
  }
  static std::string Sha(const std::string& token) { return DigestHex(Sha256(token)); }

  CliResult Run(std::vector<std::string> arguments, const std::vector<std::string>& who,
                bool json = true) {
    arguments.insert(arguments.end(),
                     {"--store", server_->address(), "--tls-ca", access_.tls_client_ca});
    arguments.insert(arguments.end(), who.begin(), who.end());
    if (json) arguments.push_back("--json");
    return RunCli(arguments);
  }
  std::vector<std::string> Token(const std::string& token) {
    return {"--token-file", secrets_.Write(token, token + "\n")};
  }
  std::vector<std::string> Certificate(const std::string& name) {
    const auto issued = authority_.Issue(name);
    return {"--tls-cert", secrets_.Write(name + ".pem", issued.certificate), "--tls-key",
            secrets_.Write(name + ".key", issued.key)};
  }

  TestFolder folder_;
  SecretFolder secrets_;
  TestAuthority authority_;
  AccessFlags access_;
  std::unique_ptr<StoreServer> server_;
  std::string tiny_;
};

TEST_F(AccessTest, UnreadableIdentitiesFileIsNamed) {
  access_.identities_file = "/nonexistent";
  const absl::Status status = OpenAccess(access_, "127.0.0.1:0").status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("--identities-file"), HasSubstr("/nonexistent")));
}

TEST_F(AccessTest, CredentialsSelectTenant) {
  EXPECT_EQ(Run({"import", tiny_}, Token("token-a")).code, kExitOk);
  EXPECT_EQ(Run({"ls"}, Token("token-a")).objects.size(), 1u);
  EXPECT_EQ(Run({"ls"}, Certificate("caller-b")).objects.size(), 0u);
  EXPECT_EQ(Run({"import", tiny_}, Certificate("caller-b")).code, kExitOk);
  const CliResult own = Run({"stats"}, Certificate("caller-b"));
  EXPECT_EQ(own.last()["restore_points"], 1) << own.out << own.err;
  EXPECT_EQ(own.last()["tenant"]["tenant"], "b") << own.out;
  const std::string id = Run({"ls"}, Token("token-a")).last()["id"].get<std::string>();
  EXPECT_EQ(Run({"pin", id}, Token("token-a")).last()["pinned"], true);
  EXPECT_EQ(Run({"export", id, "--out", folder_.File("own")}, Token("token-a")).code, kExitOk);
  EXPECT_EQ(folder_.Read("own"), TinyFile());
  const CliResult drop = Run({"drop", "--all"}, Certificate("caller-b"));
  EXPECT_EQ(drop.last()["dropped"], 1);
  EXPECT_EQ(Run({"ls"}, Token("token-a")).objects.size(), 1u) << "what is a's stays";
}

TEST_F(AccessTest, UnauthorizedCallsAreRefused) {
  const CliResult stranger = Run({"ls"}, Token("token-of-nobody"));
  EXPECT_EQ(stranger.code, kExitFailed);
  EXPECT_THAT(stranger.err, HasSubstr("no valid identity"));
  EXPECT_THAT(Run({"ls"}, {}).err, HasSubstr("no valid identity"));
  EXPECT_THAT(Run({"ls"}, Certificate("caller-c")).err, HasSubstr("no valid identity"));
  const CliResult other = Run({"ls", "--tenant", "b"}, Token("token-a"));
  EXPECT_EQ(other.code, kExitFailed);
  EXPECT_THAT(other.err, AllOf(HasSubstr("asserted by \"a\""), HasSubstr("store at ")));
  EXPECT_EQ(Run({"ls", "--tenant", "b"}, Token("token-ops")).code, kExitOk);
}

TEST_F(AccessTest, AdminListingNamesTenants) {
  ASSERT_EQ(Run({"import", tiny_}, Token("token-a")).code, kExitOk);
  ASSERT_EQ(Run({"import", tiny_}, Certificate("caller-b")).code, kExitOk);
  EXPECT_THAT(Run({"ls"}, Token("token-ops"), false).out,
              StartsWith("restore points of tenant default; --tenant '*' lists all tenants\nid"));
  EXPECT_THAT(Run({"ls", "--tenant", "a"}, Token("token-ops"), false).out,
              StartsWith("restore points of tenant a;"));
  EXPECT_THAT(Run({"ls"}, Token("token-a"), false).out, StartsWith("id"));
  const CliResult all = Run({"ls", "--tenant", "*"}, Token("token-ops"), false);
  EXPECT_THAT(all.out,
              AllOf(StartsWith("id"), HasSubstr("  of tenant a\n"), HasSubstr("  of tenant b\n")));
  const CliResult objects = Run({"ls", "--tenant", "*"}, Token("token-ops"));
  ASSERT_EQ(objects.objects.size(), 2u);
  EXPECT_EQ(objects.last()["id"].get<std::string>().size(), 64u);
  EXPECT_THAT((std::vector<Json>{objects.objects[0]["tenant"], objects.objects[1]["tenant"]}),
              UnorderedElementsAre("a", "b"));
  EXPECT_THAT(Run({"ls", "--tenant", "*"}, Token("token-a")).err, HasSubstr("may name another"));
  EXPECT_THAT(Run({"drop", "--all", "--tenant", "*"}, Token("token-ops")).err,
              HasSubstr("means all tenants"));
}

TEST_F(AccessTest, ListWithoutIdentitiesHidesOtherTenants) {
  const StoreOptions options = StoreServer::SmallStore(folder_.File("data"));
  server_ = std::make_unique<StoreServer>(options, access_);
  ASSERT_EQ(Run({"import", tiny_}, Token("token-a")).code, kExitOk);
  ASSERT_EQ(Run({"ls", "--tenant", "*"}, Token("token-ops")).objects.size(), 1u);
  server_.reset();
  server_ = std::make_unique<StoreServer>(options);
  const CliResult all = RunCli({"ls", "--tenant", "*", "--store", server_->address(), "--json"});
  EXPECT_EQ(all.code, kExitOk) << all.err;
  EXPECT_EQ(all.objects.size(), 0u) << all.out;
  server_.reset();
  server_ = std::make_unique<StoreServer>(options, access_);
  EXPECT_EQ(Run({"ls", "--tenant", "*"}, Token("token-ops")).objects.size(), 1u);
}

TEST_F(AccessTest, AdminPublishesToPublicTenant) {
  ASSERT_EQ(Run({"import", tiny_, "--tenant", "public"}, Token("token-ops")).code, kExitOk);
  EXPECT_EQ(Run({"ls", "--tenant", "public"}, Token("token-ops")).objects.size(), 1u);
  EXPECT_EQ(Run({"ls", "--tenant", "public"}, Token("token-a")).code, kExitFailed);
}

TEST_F(AccessTest, TlsMismatchIsExplained) {
  const CliResult without = RunCli({"stats", "--store", server_->address()});
  EXPECT_EQ(without.code, kExitUnreachable);
  EXPECT_THAT(without.err, HasSubstr("if it uses TLS, pass --tls-ca"));

  StoreServer plain(StoreServer::SmallStore(""));
  const CliResult with =
      RunCli({"stats", "--store", plain.address(), "--tls-ca", access_.tls_client_ca});
  EXPECT_EQ(with.code, kExitUnreachable);
  EXPECT_THAT(with.err, HasSubstr("the server does not use TLS; leave out --tls-ca"));

  TestAuthority other;
  const CliResult stranger = RunCli({"stats", "--store", server_->address(), "--tls-ca",
                                     secrets_.Write("other.pem", other.certificate())});
  EXPECT_EQ(stranger.code, kExitUnreachable);
  // Both certificate authorities have the same name, so OpenSSL reports a wrong signature instead
  // of an unknown authority.
  EXPECT_THAT(stranger.err, HasSubstr("TLS failed: "));
}

}  // namespace
}  // namespace hearth
