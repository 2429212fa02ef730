// Authentication between a store and its shared engine in both directions: TLS, Redis users, and
// the files of passwords and certificates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/cache_store/shared/redis_kit.h"
#include "tests/cache_store/shared/redis_servers.h"
#include "tests/support/test_certificates.h"

namespace hearth {
namespace {

absl::Status Try(SharedEngine* engine) { return engine->Exists({"h1:key"}, Soon())[0].status(); }

class RedisTrust : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisProcess::IsInstalled()) GTEST_SKIP() << "redis-tools is not installed";
    server_ca_ = files_.Write("server-ca", authority_.certificate());
    client_ca_ = files_.Write("client-ca", authority_.certificate());
    WriteServer(&authority_);
  }
  // Writes the certificate that the server uses from its next start.
  void WriteServer(TestAuthority* authority) {
    const TestAuthority::Pem server = authority->Issue("redis");
    certificate_ = files_.Write("server.crt", server.certificate);
    key_ = files_.Write("server.key", server.key);
  }
  std::vector<std::string> TlsSettings(const std::string& asks_clients) const {
    return {"--tls-cert-file",    certificate_, "--tls-key-file",     key_,
            "--tls-ca-cert-file", server_ca_,   "--tls-auth-clients", asks_clients};
  }
  RedisOptions Tls(const std::string& host, int port) const {
    RedisOptions options =
        Patient(ParseRedisUrl(absl::StrCat("rediss://", host, ":", port)).value());
    options.ca_file = client_ca_;
    return options;
  }

  const SecretFolder files_;
  const TestFolder folder_;
  TestAuthority authority_;
  std::string server_ca_, client_ca_, certificate_, key_;
};

TEST_F(RedisTrust, TlsServerRefusesPlainClient) {
  RedisProcess redis(folder_.path(), {false, true, TlsSettings("no")});
  const auto engine = OpenRedisCluster(Tls("127.0.0.1", redis.tls_port())).value();
  const std::string content(3000000, 'x');
  ASSERT_TRUE(engine->Set({{"h1:key", content}}, Soon())[0].ok());
  EXPECT_TRUE(engine->Get({"h1:key"}, content.size(), Soon())[0].value() == content);
  const auto plain = OpenRedis(absl::StrCat("127.0.0.1:", redis.tls_port()));
  EXPECT_FALSE(Try(plain.get()).ok());
}

TEST_F(RedisTrust, ClusterWorksOverTls) {
  std::vector<std::string> settings = TlsSettings("no");
  settings.insert(settings.end(), {"--tls-cluster", "yes"});
  RedisServers servers({3, 0, true, settings});
  const auto engine = OpenRedisCluster(Tls("127.0.0.1", servers.at(1).tls_port())).value();
  std::vector<std::string> keys;
  for (int i = 0; i < 100; ++i) keys.push_back(absl::StrCat("h1:", i));
  for (const auto& exists : engine->Exists(keys, Soon())) EXPECT_FALSE(exists.value());
  EXPECT_EQ(engine->Stats().shards, 3u);
}

TEST_F(RedisTrust, WrongCertificateIsRefused) {
  RedisProcess redis(folder_.path(), {false, true, TlsSettings("no")});
  TestAuthority other;
  RedisOptions stranger = Tls("127.0.0.1", redis.tls_port());
  stranger.ca_file = files_.Write("other-ca", other.certificate());
  const auto refusing = OpenRedisCluster(stranger).value();
  EXPECT_TRUE(absl::IsPermissionDenied(Try(refusing.get()))) << Try(refusing.get());
  // The certificate is valid for 127.0.0.1, not for the host name.
  const auto named = OpenRedisCluster(Tls("localhost", redis.tls_port())).value();
  EXPECT_FALSE(Try(named.get()).ok());
}

TEST_F(RedisTrust, ChangedCertificatesAreReloaded) {
  std::optional<RedisProcess> redis(std::in_place, folder_.path(),
                                    RedisProcess::Options{false, true, TlsSettings("no")});
  const auto engine = OpenRedisCluster(Tls("127.0.0.1", redis->tls_port())).value();
  ASSERT_TRUE(Try(engine.get()).ok());
  TestAuthority next;
  redis->Kill();
  WriteServer(&next);
  files_.Write("server-ca", next.certificate());
  redis->Start();
  while (!absl::IsPermissionDenied(Try(engine.get()))) redis->Pause();
  files_.Write("client-ca", next.certificate());
  while (!Try(engine.get()).ok()) redis->Pause();
}

TEST_F(RedisTrust, ClientCertificateIsSent) {
  RedisProcess redis(folder_.path(), {false, true, TlsSettings("yes")});
  RedisOptions options = Tls("127.0.0.1", redis.tls_port());
  const auto unknown = OpenRedisCluster(options).value();
  EXPECT_FALSE(Try(unknown.get()).ok());
  const TestAuthority::Pem client = authority_.Issue("store");
  options.certificate_file = files_.Write("client.crt", client.certificate);
  options.key_file = files_.Write("client.key", client.key);
  const auto known = OpenRedisCluster(options).value();
  EXPECT_TRUE(Try(known.get()).ok()) << Try(known.get());
}

TEST_F(RedisTrust, UserWithDocumentedRightsSuffices) {
  RedisProcess redis(folder_.path(), {});
  ASSERT_EQ(redis.Ask({"ACL", "SETUSER", "hearth", "on", ">secret", "~h1:*", "+exists", "+getrange",
                       "+set", "+pexpire", "+unlink", "+asking", "+ping", "+client|setname",
                       "+cluster|slots"}),
            "OK");
  redis.Ask({"ACL", "SETUSER", "default", "-@all", "+acl|log"});
  RedisOptions options = Patient(ParseRedisUrl("redis://" + redis.address()).value());
  options.user = "hearth";
  options.password_file = files_.Write("password", "secret");
  const auto engine = OpenRedisCluster(options).value();
  EXPECT_TRUE(engine->Set({{"h1:key", "v", absl::Hours(1), true}}, Soon())[0].value());
  EXPECT_TRUE(engine->Exists({"h1:key"}, Soon())[0].value());
  EXPECT_EQ(engine->Get({"h1:key"}, kMaxBytes, Soon())[0].value(), "v");
  EXPECT_TRUE(engine->ExtendExpiry({{"h1:key", absl::Hours(2)}}, Soon())[0].ok());
  EXPECT_TRUE(engine->Erase({"h1:key"}, Soon())[0].ok());
  EXPECT_EQ(redis.Ask({"ACL", "LOG"}), "") << "nothing was refused";
}

TEST_F(RedisTrust, PipesAsFilesAreRefused) {
  const std::string pipe = files_.File("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const absl::Status password = ReadPassword(pipe).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(password)) << password;
  EXPECT_NE(password.message().find(pipe), std::string::npos);
  RedisOptions options = ParseRedisUrl("rediss://127.0.0.1:1").value();
  options.ca_file = pipe;
  const absl::Status authority = OpenRedisCluster(options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(authority)) << authority;
  EXPECT_NE(authority.message().find(pipe), std::string::npos);
}

TEST_F(RedisTrust, ChangedPasswordIsReloaded) {
  RedisProcess redis(folder_.path(), {});
  redis.Ask({"ACL", "SETUSER", "hearth", "on", ">first", "~h1:*", "+@all"});
  RedisOptions options = Patient(ParseRedisUrl("redis://" + redis.address()).value());
  options.user = "hearth";
  options.password_file = files_.Write("password", "first\n");
  const auto engine = OpenRedisCluster(options).value();
  EXPECT_TRUE(Try(engine.get()).ok()) << Try(engine.get());
  EXPECT_TRUE(absl::IsPermissionDenied(engine->Exists({"other"}, Soon())[0].status()));
  redis.Ask({"ACL", "SETUSER", "hearth", "resetpass", ">second"});
  redis.Ask({"CLIENT", "KILL", "USER", "hearth"});
  while (!absl::IsPermissionDenied(Try(engine.get()))) redis.Pause();
  files_.Write("password", "second\n");
  while (!Try(engine.get()).ok()) redis.Pause();
}

// A file may be written in two steps. Until the second step, the previous contents stay in use.
TEST_F(RedisTrust, UnusableFileKeepsPreviousContent) {
  RedisProcess redis(folder_.path(), {false, true, TlsSettings("no")});
  redis.Ask({"ACL", "SETUSER", "hearth", "on", ">secret", "~h1:*", "+@all"});
  RedisOptions options = Tls("127.0.0.1", redis.tls_port());
  options.user = "hearth";
  options.password_file = files_.Write("password", "secret\n");
  std::atomic<int> reports{0};
  options.on_unusable_file = [&](const absl::Status& status) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    ++reports;
  };
  const auto engine = OpenRedisCluster(options).value();
  ASSERT_TRUE(Try(engine.get()).ok()) << Try(engine.get());
  files_.Write("password", "");
  files_.Write("client-ca", authority_.certificate().substr(0, 100));
  for (int connection = 1; connection < 4; ++connection) {
    redis.Ask({"CLIENT", "KILL", "USER", "hearth"});
    while (engine->Stats().reconnects < static_cast<uint64_t>(connection)) redis.Pause();
    while (!Try(engine.get()).ok()) redis.Pause();
  }
  EXPECT_EQ(reports, 2) << "one for each file";
}

TEST_F(RedisTrust, MissingPasswordIsPermissionDenied) {
  RedisProcess redis(folder_.path(), {false, false, {"--requirepass", "secret"}});
  const auto engine = OpenRedis(redis.address());
  EXPECT_TRUE(absl::IsPermissionDenied(Try(engine.get()))) << Try(engine.get());
}

TEST_F(RedisTrust, UnusableFileFailsOpen) {
  RedisOptions options = Tls("127.0.0.1", 1);
  options.ca_file = "/no/such/ca";
  const absl::Status status = OpenRedisCluster(options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("/no/such/ca"));
  RedisOptions plain = ParseRedisUrl("redis://127.0.0.1:1").value();
  plain.password_file = "/no/such/password";
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenRedisCluster(plain).status()));
}

}  // namespace
}  // namespace hearth
