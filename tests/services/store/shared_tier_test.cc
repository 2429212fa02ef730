// The flags of the shared tier (Redis): without the flags nothing changes, and an invalid flag is
// named in the error.
#include "services/store/shared_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "cache_store/base/secret.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

using testing::HasSubstr;

std::string Refusal(const SharedFlags& flags, const std::string& secret_file) {
  return std::string(CheckSharedFlags(flags, secret_file).message());
}

TEST(SharedTier, SharedNoneLeavesStoreUnchanged) {
  const SharedFlags flags;
  EXPECT_TRUE(CheckSharedFlags(flags, "").ok());
  StoreOptions options;
  options.data_dir.clear();
  options.host_bytes = 1 << 20;
  auto store = TieredStore::Open(options).value();
  const TieredStore* const before = store.get();
  const auto added = AddSharedTier(flags, "", std::move(store));
  ASSERT_TRUE(added.ok());
  EXPECT_EQ(added->store.get(), before);
  EXPECT_EQ(added->engine, nullptr);
  for (const MetricSample& sample : SharedEngineSamples(*added)) EXPECT_EQ(sample.value, 0);
}

TEST(SharedTier, MissingSecretIsRefused) {
  SharedFlags flags;
  flags.url = "redis://127.0.0.1:1";
  EXPECT_THAT(Refusal(flags, ""), HasSubstr("--shared needs --secret-file"));
  EXPECT_EQ(Refusal(flags, "secret"), "");
}

TEST(SharedTier, InvalidFlagsAreNamed) {
  SharedFlags flags;
  flags.url = "http://127.0.0.1:1";
  EXPECT_THAT(Refusal(flags, "secret"), HasSubstr("--shared: "));
  flags.url = "redis://127.0.0.1:1";
  flags.options.ttl = absl::Milliseconds(1);
  EXPECT_THAT(Refusal(flags, "secret"), HasSubstr("--shared-ttl"));
  flags.options = SharedOptions();
  flags.options.fetch_budget = absl::ZeroDuration();
  EXPECT_THAT(Refusal(flags, "secret"), HasSubstr("--shared-fetch-budget: must be 1ms"));
}

TEST(SharedTier, ErrorNamesMissingSharedFlag) {
  SharedFlags flags;
  flags.url = "redis://127.0.0.1:1";
  flags.ca_file = "our-ca.pem";
  EXPECT_EQ(Refusal(flags, "secret"),
            "--shared-ca our-ca.pem needs TLS: write --shared rediss://HOST:PORT");
  flags.url = "rediss://127.0.0.1:1";
  EXPECT_EQ(Refusal(flags, "secret"), "");
  flags.key_file = "our.key";
  EXPECT_EQ(Refusal(flags, "secret"), "--shared-key our.key needs --shared-cert");
  std::swap(flags.key_file, flags.certificate_file);
  EXPECT_EQ(Refusal(flags, "secret"), "--shared-cert our.key needs --shared-key");
  flags.certificate_file.clear();
  flags.user = "hearth";
  EXPECT_EQ(Refusal(flags, "secret"), "--shared-user hearth needs --shared-password-file");
}

TEST(SharedTier, FlagsWithoutTierAreRefused) {
  const auto refusal = [](auto set) {
    SharedFlags flags;
    set(&flags);
    return Refusal(flags, "secret");
  };
  const std::string none = " has no effect with --shared none";
  EXPECT_EQ(refusal([](SharedFlags* flags) { flags->ca_file = "ca.pem"; }), "--shared-ca" + none);
  EXPECT_EQ(refusal([](SharedFlags* flags) { flags->user = "me"; }), "--shared-user" + none);
  EXPECT_EQ(refusal([](SharedFlags* flags) { flags->options.ttl = absl::Hours(1); }),
            "--shared-ttl" + none);
  EXPECT_EQ(refusal([](SharedFlags* flags) { flags->options.fetch_budget = absl::Seconds(1); }),
            "--shared-fetch-budget" + none);
}

TEST(SharedTier, UnusableFileNamesItsFlag) {
  const TestFolder folder;
  SharedFlags flags;
  flags.url = "rediss://127.0.0.1:1";
  const std::string secret_file = folder.path() + "/secret";
  ASSERT_TRUE(ReadOrMakeSecret(secret_file).ok());
  const auto failure = [&] {
    return std::string(AddSharedTier(flags, secret_file, nullptr).status().message());
  };
  flags.ca_file = folder.path() + "/ca.pem";
  EXPECT_THAT(failure(), HasSubstr("--shared-ca: redis: cannot use " + flags.ca_file));
  flags.ca_file.clear();
  flags.password_file = folder.path() + "/password";
  EXPECT_THAT(failure(), HasSubstr("--shared-password-file: "));
  EXPECT_THAT(failure(), HasSubstr(flags.password_file));
}

// A store with a shared tier whose Redis does not run.
class SharedTierWithoutEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    StoreOptions options;
    options.host_bytes = 1 << 20;
    options.secret_file = secret_file_;
    ASSERT_TRUE(ReadOrMakeSecret(secret_file_).ok());
    SharedFlags flags;
    flags.url = "redis://127.0.0.1:1";
    auto added = AddSharedTier(flags, secret_file_, TieredStore::Open(options).value());
    ASSERT_TRUE(added.ok()) << added.status();
    added_ = *std::move(added);
  }

  const TestFolder folder_;
  const std::string secret_file_ = folder_.path() + "/secret";
  StoreAndEngine added_;
};

TEST_F(SharedTierWithoutEngine, StoreStartsWithoutEngine) {
  ASSERT_NE(added_.engine, nullptr);
  const StoreStats stats = added_.store->Stats();
  EXPECT_EQ(stats.restore_points, 0);
  EXPECT_EQ(stats.Of(Counter::kSharedUnreachableShards), 1);
}

TEST(SharedTier, ReachabilityChangesAreLoggedOnce) {
  SetUpLogging(LogLevel::kInfo, LogFormat::kText);
  Reachability reachability("shared tier", "redis://r:1");
  SharedEngineStats stats;
  stats.shards = stats.reachable = 2;
  const auto said = [&] {
    testing::internal::CaptureStderr();
    NoteReached(stats, &reachability);
    NoteReached(stats, &reachability);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said(), "");
  stats.reachable = 1;
  EXPECT_THAT(said(), HasSubstr("warning shared tier unreachable address=redis://r:1 reason=\"1 of "
                                "2 primaries reached\"\n"));
  EXPECT_FALSE(reachability.is_reached());
  stats.reachable = 2;
  EXPECT_THAT(said(), HasSubstr("info shared tier reachable address=redis://r:1"));
  stats.shards = stats.reachable = 0;
  EXPECT_THAT(said(), HasSubstr("unreachable")) << "none is known";
}

}  // namespace
}  // namespace hearth
