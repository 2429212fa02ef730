#include "services/serving/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "services/cli/command_line.h"
#include "services/cli/near_words.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

enum class Colour { kRed, kGreen };

struct TestFlags {
  ServerFlags server;
  uint64_t bytes = 4096;
  uint32_t count = 3;
  Colour colour = Colour::kRed;
};

// Parses the flags of a program hearth-test. Returns -1 if the program would continue, else its
// exit code.
int Parse(std::vector<std::string> args, TestFlags* flags) {
  FlagSet set("hearth-test", "HEARTH_SAMPLE_", "About.", "Examples:\n  hearth-test\n");
  flags->server.listen = "127.0.0.1:7";
  set.AddServerFlags(&flags->server);
  set.AddBytes("host-bytes", &flags->bytes, "Bytes");
  set.AddUint("count", &flags->count, "Count");
  set.AddChoice("colour", &flags->colour, {"red", "green"}, "Colour");
  std::vector<const char*> argv = {"hearth-test"};
  for (const std::string& arg : args) argv.push_back(arg.c_str());
  int exit_code = -1;
  return set.Parse(static_cast<int>(argv.size()), argv.data(), &exit_code) ? -1 : exit_code;
}

TEST(ParseByteSize, ReadsBinaryAndDecimalUnits) {
  EXPECT_EQ(*ParseByteSize("0"), 0u);
  EXPECT_EQ(*ParseByteSize("4096"), 4096u);
  EXPECT_EQ(*ParseByteSize("512MiB"), uint64_t{512} << 20);
  EXPECT_EQ(*ParseByteSize("4GiB"), uint64_t{4} << 30);
  EXPECT_EQ(*ParseByteSize("4g"), uint64_t{4} << 30);
  EXPECT_EQ(*ParseByteSize("1.5 GB"), uint64_t{1500000000});
  EXPECT_EQ(*ParseByteSize("2TiB"), uint64_t{2} << 40);
}

TEST(ParseByteSize, InvalidSizeIsQuotedInError) {
  for (const char* text :
       {"", "MiB", "12 parsecs", "-1", "1e3", "0x10", "1.2.3MiB", "9000PiB", "99999999TiB"}) {
    absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
    EXPECT_FALSE(bytes.ok()) << text;
    EXPECT_NE(bytes.status().message().find(text), std::string::npos);
  }
}

TEST(ParseByteSize, FormattedSizesParseBack) {
  for (uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{1023}, uint64_t{1024},
                         uint64_t{512} << 20, (uint64_t{4} << 30) + 1}) {
    EXPECT_EQ(*ParseByteSize(FormatByteSize(bytes)), bytes) << FormatByteSize(bytes);
  }
}

TEST(ParseFlagDuration, OnlyKnownUnitsAreAccepted) {
  EXPECT_EQ(*ParseFlagDuration("250ms"), absl::Milliseconds(250));
  EXPECT_EQ(*ParseFlagDuration("1m"), absl::Minutes(1));
  EXPECT_EQ(*ParseFlagDuration("0"), absl::ZeroDuration());
  for (const char* text : {"", "10", "-1s", "inf", "soon"}) {
    EXPECT_FALSE(ParseFlagDuration(text).ok()) << text;
  }
}

TEST(FlagSet, EmptyCommandLineKeepsDefaults) {
  TestFlags flags;
  EXPECT_EQ(Parse({}, &flags), -1);
  EXPECT_EQ(flags.server.listen, "127.0.0.1:7");
  EXPECT_EQ(flags.bytes, 4096u);
  EXPECT_EQ(flags.colour, Colour::kRed);
}

TEST(FlagSet, MissingRequiredFlagFails) {
  const auto parse = [](std::vector<const char*> argv, std::string* value) {
    FlagSet set("hearth-test", "HEARTH_SAMPLE_", "About.", "Examples:\n  hearth-test\n");
    set.AddRequired("model", value, "Folder");
    int exit_code = -1;
    argv.insert(argv.begin(), "hearth-test");
    return set.Parse(static_cast<int>(argv.size()), argv.data(), &exit_code) ? -1 : exit_code;
  };
  std::string model;
  testing::internal::CaptureStderr();
  EXPECT_EQ(parse({}, &model), 2);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("--model is required"), std::string::npos);
  EXPECT_EQ(parse({"--model", "a"}, &model), -1);
  EXPECT_EQ(model, "a");
  setenv("HEARTH_SAMPLE_MODEL", "b", 1);
  EXPECT_EQ(parse({}, &model), -1);
  unsetenv("HEARTH_SAMPLE_MODEL");
  EXPECT_EQ(model, "b");
}

TEST(FlagSet, ReadsTheCommandLine) {
  TestFlags flags;
  EXPECT_EQ(Parse({"--listen", "127.0.0.1:0", "--host-bytes=1GiB", "--colour", "green",
                   "--log-level=warning", "--drain-timeout=3s"},
                  &flags),
            -1);
  EXPECT_EQ(flags.server.listen, "127.0.0.1:0");
  EXPECT_EQ(flags.bytes, uint64_t{1} << 30);
  EXPECT_EQ(flags.colour, Colour::kGreen);
  EXPECT_EQ(flags.server.log_level, LogLevel::kWarning);
  EXPECT_EQ(flags.server.drain_timeout, absl::Seconds(3));
}

TEST(FlagSet, CommandLineBeatsEnvironmentBeatsFile) {
  const TestFolder folder;
  const std::string path =
      folder.Write("flags.toml", "host-bytes = \"1MiB\"\ncount = 11\nlisten = \"127.0.0.1:11\"\n");
  setenv("HEARTH_SAMPLE_HOST_BYTES", "2MiB", 1);
  setenv("HEARTH_SAMPLE_COUNT", "12", 1);
  TestFlags flags;
  EXPECT_EQ(Parse({"--config", path, "--host-bytes", "3MiB"}, &flags), -1);
  unsetenv("HEARTH_SAMPLE_HOST_BYTES");
  unsetenv("HEARTH_SAMPLE_COUNT");
  EXPECT_EQ(flags.bytes, uint64_t{3} << 20);
  EXPECT_EQ(flags.count, 12u);
  EXPECT_EQ(flags.server.listen, "127.0.0.1:11");
}

TEST(FlagSet, UnknownFileFlagIsRefused) {
  const TestFolder folder;
  const std::pair<std::string, std::string> files[] = {
      // The flag is spelt with a dash.
      {"# Sizes\ncount = 2\n  host_bytes = \"1MiB\"\n",
       ":3: unknown flag host_bytes; did you mean host-bytes?"},
      // No suggestion: "host" is only the beginning of another flag.
      {"host-bytes = \"1MiB\"\ncount = 2\nhost = \"a\"\n", ":3: unknown flag host;"}};
  for (const auto& [text, wrong] : files) {
    const std::string path = folder.Write("flags.toml", text);
    TestFlags flags;
    testing::internal::CaptureStderr();
    EXPECT_EQ(Parse({"--config", path}, &flags), 2);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr(path + wrong));
  }
}

TEST(FlagSet, ConfigPipeIsRefused) {
  const TestFolder folder;
  const std::string path = folder.File("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  TestFlags flags;
  testing::internal::CaptureStderr();
  EXPECT_EQ(Parse({"--config", path}, &flags), 2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr(path + " must be a regular file; it is a pipe"));
}

TEST(FlagSet, InvalidFlagExitsWithCode2) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{"--no-such-flag"},
                                               {"--host-bytes", "lots"},
                                               {"--colour", "blue"},
                                               {"--count", "many"},
                                               {"--config", "/no/such/file"}}) {
    TestFlags flags;
    testing::internal::CaptureStderr();
    EXPECT_EQ(Parse(args, &flags), 2) << args[0];
    const std::string line = testing::internal::GetCapturedStderr();
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    EXPECT_EQ(line.find("hearth-test: "), 0u) << line;
  }
}

TEST(FlagSet, MistypedFlagSuggestsNearest) {
  TestFlags flags;
  testing::internal::CaptureStderr();
  EXPECT_EQ(Parse({"--host-byte", "3", "--count", "2"}, &flags), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "hearth-test: unknown flag --host-byte; did you mean --host-bytes? "
            "(see --help)\n");
}

TEST(MistypedVariables, OnlyNearNamesAreReported) {
  const char* const environment[] = {"HEARTH_STORE_HOST_BYTES=1",
                                     "HEARTH_STORE_HOST_BYTE=1",
                                     "HEARTH_STORE_SERVICE_HOST=10.0.0.1",
                                     "HEARTH_STORE_PORT=tcp://10.0.0.1:7080",
                                     "HEARTH_STORE_PORT_7080_TCP_ADDR=10.0.0.1",
                                     "HEARTH_STORE_SERVICE_PORT_GRPC=7080",
                                     "HEARTH_STOR_LISTEN=a",
                                     "HEARTHSTORE_LISTEN=a",
                                     "HEARTH_WORKER_LISTEN=a",
                                     "HEARTH_SOMETHING=a",
                                     "PATH=/bin",
                                     nullptr};
  const std::vector<std::string> found =
      MistypedVariables(environment, "hearth-store", "HEARTH_STORE_",
                        {"HEARTH_STORE_HOST_BYTES", "HEARTH_STORE_LISTEN"});
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(
      found[0],
      "environment: HEARTH_STORE_HOST_BYTE is not a variable of hearth-store and was ignored; "
      "did you mean HEARTH_STORE_HOST_BYTES?");
  EXPECT_NE(found[1].find("HEARTH_STOR_LISTEN"), std::string::npos);
  EXPECT_NE(found[2].find("HEARTHSTORE_LISTEN"), std::string::npos);
}

TEST(FlagSet, ParseFindsMistypedVariables) {
  setenv("HEARTH_SAMPLE_HOST_BYTE", "2MiB", 1);
  TestFlags flags;
  EXPECT_EQ(Parse({}, &flags), -1);
  unsetenv("HEARTH_SAMPLE_HOST_BYTE");
  ASSERT_EQ(flags.server.mistyped_variables.size(), 1u);
  EXPECT_NE(flags.server.mistyped_variables[0].find("HEARTH_SAMPLE_HOST_BYTE"), std::string::npos);
}

TEST(FlagSet, HelpShowsDefaultsAndExamples) {
  TestFlags flags;
  testing::internal::CaptureStdout();
  EXPECT_EQ(Parse({"--help"}, &flags), 0);
  const std::string help = testing::internal::GetCapturedStdout();
  for (const char* part : {"About.", "Examples:", "--host-bytes", "4KiB", "red|green",
                           "HEARTH_SAMPLE_HOST_BYTES", "--address-file"}) {
    EXPECT_NE(help.find(part), std::string::npos) << part << "\n" << help;
  }
}

}  // namespace
}  // namespace hearth
