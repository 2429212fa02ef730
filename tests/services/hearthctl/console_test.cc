// Tests that untrusted text cannot control the terminal, and that hearthctl reports lost output.
#include "services/cli/console.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <ext/stdio_filebuf.h>
#include <sstream>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "services/hearthctl/cli.h"
#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Shown(const std::string& text) {
  std::ostringstream out;
  SafeStream(&out) << text;
  return out.str();
}

TEST(SafeStreamTest, ControlCharactersAreEscaped) {
  EXPECT_EQ(Shown("a\tb\n"), "a\tb\n");
  EXPECT_EQ(Shown("\x1b[2Ja\r\b\x07\x7f"), "\\x1b[2Ja\\x0d\\x08\\x07\\x7f");
  EXPECT_EQ(Shown(std::string(1, '\0')), "\\x00");
  EXPECT_EQ(Shown("\xc2\x9b"), "\\x9b") << "C1";
  EXPECT_EQ(Shown("\x9b"), "\\x9b") << "C1 as a byte of its own";
  EXPECT_EQ(Shown("\xe2\x80\xae\xe2\x81\xa6\xd8\x9c\xe2\x80\x8f"), "\\u202e\\u2066\\u061c\\u200f");
  EXPECT_EQ(Shown("\xe0\x80\x9b"), "\\x1b") << "in more bytes than it needs";
  for (const std::string plain :
       {"\xc3\xa9\xe6\xbc\xa2\xf0\x9f\x94\xa5", "\xe2\x80\x94", "\xc2\xa0", "\xff"}) {
    EXPECT_EQ(Shown(plain), plain);
  }
}

TEST(SafeStreamTest, SplitCharacterIsJoined) {
  std::ostringstream out;
  SafeStream stream(&out);
  stream << "\xe2" << std::flush << "\x80" << std::flush << "\xae" << '\xc3' << '\xa9'
         << std::flush;
  EXPECT_EQ(out.str(), "\\u202e\xc3\xa9");
}

TEST(SafeStreamTest, RawTextIsUnchanged) {
  std::ostringstream out;
  SafeStream(&out) << Raw{"\x1b[K"} << "\x1b";
  EXPECT_EQ(out.str(), "\x1b[K\\x1b");
  std::ostringstream plain;
  plain << Raw{"\x1b[K"};
  EXPECT_EQ(plain.str(), "\x1b[K");
}

TEST(SafeStreamTest, ServerErrorIsEscaped) {
  FakeWorker worker;
  worker.failure = grpc::Status(grpc::StatusCode::INTERNAL, "\x1b]0;owned\x07");
  const CliResult result = RunCli({"generate", "a", "--worker", worker.address()});
  EXPECT_THAT(result.err, AllOf(HasSubstr("\\x1b]0;owned\\x07"), Not(HasSubstr("\x1b"))));
}

TEST(SafeStreamTest, AnswerToFileIsUnchanged) {
  FakeWorker worker;
  worker.first_word = "\x1b[31m";
  const CliResult text = RunCli({"generate", "a", "--worker", worker.address()});
  EXPECT_THAT(text.out, HasSubstr("\x1b[31m there"));
  const CliResult json = RunCli({"generate", "a", "--json", "--worker", worker.address()});
  EXPECT_EQ(json.last()["text"], "\x1b[31m there");
}

// Runs hearthctl with `out` as its standard output. Returns the exit code and the text of standard
// error.
std::pair<int, std::string> RunInto(std::ostream& out, std::vector<const char*> words) {
  std::istringstream in;
  std::ostringstream err;
  Console console{in, out, err};
  words.insert(words.begin(), "hearthctl");
  const int code = RunHearthctl(static_cast<int>(words.size()), words.data(), console);
  return {code, err.str()};
}

TEST(LostOutputTest, FullDiskExitsOneWithMessage) {
  __gnu_cxx::stdio_filebuf<char> full(::open("/dev/full", O_WRONLY), std::ios::out);
  for (const char* flag : {"", "--json"}) {
    std::ostream out(&full);
    std::vector<const char*> words = {"verify", HEARTH_GOLDEN_DIR "/tiny.snapshot"};
    if (*flag != '\0') words.push_back(flag);
    const auto [code, err] = RunInto(out, words);
    EXPECT_EQ(code, kExitFailed);
    EXPECT_EQ(err, "hearthctl: cannot write the output: No space left on device\n");
  }
}

TEST(LostOutputTest, ClosedPipeEndsCallSilently) {
  std::signal(SIGPIPE, SIG_IGN);
  absl::Notification ended;  // destroyed after the worker, whose call waits for it
  FakeWorker worker;
  worker.between_words = [&ended] { ended.WaitForNotification(); };
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  __gnu_cxx::stdio_filebuf<char> pipe(ends[1], std::ios::out);
  std::ostream out(&pipe);
  const auto [code, err] = RunInto(out, {"generate", "a", "--worker", worker.address().c_str()});
  EXPECT_EQ(code, kExitFailed);
  EXPECT_EQ(err, "");
  ended.Notify();  // from now on the worker may send its second word
}

}  // namespace
}  // namespace hearth
