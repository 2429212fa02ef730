// ServerCertificates: errors name the invalid file, and a running server loads new files.
#include "services/serving/access/server_certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/rpc/client_access.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/store_server.h"
#include "tests/support/test_certificates.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ServerCertificatesTest : public testing::Test {
 protected:
  AccessFlags Flags(const TestAuthority::Pem& own, const std::string& authority = "") {
    AccessFlags flags;
    flags.tls_cert = folder_.Write("server.pem", own.certificate);
    flags.tls_key = folder_.Write("server.key", own.key);
    if (!authority.empty()) flags.tls_client_ca = folder_.Write("ca.pem", authority);
    return flags;
  }
  // Connects to the server as a client that trusts `authority`. Returns the error; empty: the call
  // succeeded.
  std::string Ask(const StoreServer& server, const TestAuthority& authority) {
    ClientAccess access;
    access.tls_ca = folder_.Write("trusted.pem", authority.certificate());
    const auto channel = PatientChannel(server.address(), access);
    grpc::ClientContext context;
    v1::StatsResponse response;
    const grpc::Status status = v1::CacheStore::NewStub(channel)->Stats(&context, {}, &response);
    return status.ok() ? "" : status.error_message();
  }
  std::string WrongWith(const AccessFlags& flags) {
    const auto access = OpenAccess(flags, "127.0.0.1:0");
    EXPECT_FALSE(access.ok());
    return std::string(access.status().message());
  }

  SecretFolder folder_;
  TestAuthority first_, second_;
};

TEST_F(ServerCertificatesTest, ErrorNamesWrongFile) {
  const TestAuthority::Pem own = first_.Issue("store"), other = first_.Issue("other");
  EXPECT_THAT(WrongWith(Flags({own.certificate, other.key})),
              AllOf(HasSubstr("--tls-key: "), HasSubstr("server.key does not belong to"),
                    HasSubstr("--tls-cert"), HasSubstr("CN=store")));
  EXPECT_THAT(WrongWith(Flags({own.key, own.key})),
              AllOf(HasSubstr("--tls-cert: "), HasSubstr("server.pem holds no certificate")));
  EXPECT_THAT(WrongWith(Flags({own.certificate, own.certificate})),
              AllOf(HasSubstr("--tls-key: "), HasSubstr("holds no private key")));
  EXPECT_THAT(WrongWith(Flags({own.certificate, "rubbish"})), HasSubstr("holds no private key"));
  EXPECT_THAT(WrongWith(Flags(own, own.key)),
              AllOf(HasSubstr("--tls-client-ca: "), HasSubstr("ca.pem holds no certificate")));
  const std::string half = other.certificate.substr(0, other.certificate.size() / 2);
  EXPECT_THAT(WrongWith(Flags({own.certificate + half, own.key})), HasSubstr("is not valid PEM"));
  AccessFlags missing = Flags(own);
  missing.tls_key = "/no/such/key";
  EXPECT_THAT(WrongWith(missing), HasSubstr("--tls-key: /no/such/key"));
}

TEST_F(ServerCertificatesTest, ClientErrorNamesWrongFile) {
  const TestAuthority::Pem own = first_.Issue("worker");
  ClientAccess access{"", "", "", "", false, "store-"};
  access.tls_ca = folder_.Write("no-ca", own.key);
  EXPECT_THAT(std::string(ConnectAs(access, "127.0.0.1:1", {}).status().message()),
              AllOf(HasSubstr("--store-tls-ca: "), HasSubstr("holds no certificate")));
  access.tls_ca = folder_.Write("ca", first_.certificate());
  access.tls_cert = folder_.Write("cert", own.certificate);
  access.tls_key = folder_.Write("key", first_.Issue("other").key);
  EXPECT_THAT(std::string(ConnectAs(access, "127.0.0.1:1", {}).status().message()),
              AllOf(HasSubstr("--store-tls-key: "), HasSubstr("does not belong")));
}

TEST_F(ServerCertificatesTest, ReloadReplacesCertificates) {
  StoreServer server(StoreServer::SmallStore(""), Flags(first_.Issue("store")));
  EXPECT_EQ(Ask(server, first_), "");
  EXPECT_NE(Ask(server, second_), "");
  // An invalid file does not replace the certificates in use.
  const TestAuthority::Pem next = second_.Issue("store");
  folder_.Write("server.pem", next.certificate);
  server.access().Reload();
  EXPECT_EQ(Ask(server, first_), "");
  folder_.Write("server.key", next.key);
  server.access().Reload();
  EXPECT_EQ(Ask(server, second_), "");
  EXPECT_NE(Ask(server, first_), "");
  server.access().Reload();
  EXPECT_EQ(Ask(server, second_), "");
}

TEST_F(ServerCertificatesTest, WarnsBeforeAndAfterExpiry) {
  const auto texts = ReadTlsFiles(
      {"tls-cert", folder_.Write("c", first_.Issue("store").certificate), "tls-key", "", "", ""});
  EXPECT_FALSE(texts.ok()) << "without a key";
  const auto life =
      ReadTlsFiles({"", "", "", "", "tls-client-ca", folder_.Write("ca", first_.certificate())});
  ASSERT_TRUE(life.ok()) << life.status();
  ASSERT_EQ(life->lives.size(), 1u);
  CertificateLife one = life->lives[0];
  EXPECT_LT(one.not_before, absl::Now());
  EXPECT_GT(one.not_after, absl::Now());
  one.not_after = absl::FromUnixSeconds(1700000000);
  one.not_before = absl::FromUnixSeconds(1600000000);
  EXPECT_EQ(ExpiryWarning(one, one.not_after - absl::Hours(24 * 15)), std::nullopt);
  EXPECT_THAT(*ExpiryWarning(one, one.not_after - absl::Hours(24 * 13)),
              AllOf(HasSubstr("--tls-client-ca"), HasSubstr("expires at 2023-11-14T22:13:20Z")));
  EXPECT_THAT(*ExpiryWarning(one, one.not_after), HasSubstr("expired at"));
  EXPECT_THAT(*ExpiryWarning(one, one.not_before - absl::Seconds(1)),
              HasSubstr("not valid before"));
}

}  // namespace
}  // namespace hearth
