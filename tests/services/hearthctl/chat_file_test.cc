#include "services/hearthctl/chat_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ErrorOf(const std::string& json) {
  return std::string(ParseChat(json).status().message());
}

TEST(ChatFileTest, ReadsStringsAndParts) {
  auto chat = ParseChat(R"([{"role": "user", "content": "a"},
                            {"role": "model", "content": [{"type": "text", "text": "b"},
                             {"text": "c", "cache_breakpoint": true}]}])");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->messages(0).parts(0).text(), "a");
  EXPECT_FALSE(chat->messages(1).parts(0).cache_breakpoint());
  EXPECT_TRUE(chat->messages(1).parts(1).cache_breakpoint());
}

TEST(ChatFileTest, MessageBreakpointIsAtMessageEnd) {
  auto chat = ParseChat(R"([{"role": "system", "content": "a", "cache_breakpoint": true},
                            {"role": "user", "content": "b", "cache_breakpoint": false},
                            {"role": "model", "content": [{"text": "c"}, {"text": "d"}],
                             "cache_breakpoint": true}])");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_TRUE(chat->messages(0).parts(0).cache_breakpoint());
  EXPECT_FALSE(chat->messages(1).parts(0).cache_breakpoint());
  EXPECT_FALSE(chat->messages(2).parts(0).cache_breakpoint());
  EXPECT_TRUE(chat->messages(2).parts(1).cache_breakpoint());
}

TEST(ChatFileTest, ErrorNamesWrongMessage) {
  EXPECT_THAT(ErrorOf("{"), HasSubstr("must be JSON; at byte 1"));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("the chat must be a list"));
  EXPECT_THAT(ErrorOf("[1]"), HasSubstr("messages[0] must be an object"));
  EXPECT_THAT(ErrorOf(R"([{"content": "a"}])"), HasSubstr("messages[0] has no role"));
  EXPECT_THAT(ErrorOf(R"([{"role": "user"}])"), HasSubstr("messages[0] has no content"));
  EXPECT_THAT(ErrorOf(R"([{"role": "user", "content": 1}])"), HasSubstr("a string or a list"));
  EXPECT_THAT(ErrorOf(R"([{"role": "user", "content": [{"text": "a", "cache": true}]}])"),
              HasSubstr("messages[0].content[0] has the unknown or wrongly typed field \"cache\""));
  EXPECT_THAT(ErrorOf(R"([{"role": "user", "content": [{}]}])"), HasSubstr("has no text"));
  EXPECT_THAT(ErrorOf(R"([{"role": "user", "content": "a", "cache_breakpoint": 1}])"),
              HasSubstr("messages[0] has a wrong cache_breakpoint: must be true or false"));
  EXPECT_THAT(ErrorOf(R"([{"role": "user", "content": [], "cache_breakpoint": true}])"),
              HasSubstr("messages[0] has a cache_breakpoint but no text before it"));
  EXPECT_THAT(ErrorOf(R"([{"role": "user", "content": "a", "cache_brakpoint": true}])"),
              HasSubstr("messages[0] has the unknown field \"cache_brakpoint\""));
}

TEST(ReadTextFileTest, EmptyFileIsRead) {
  TestFolder folder;
  const auto text = ReadTextFile(folder.Write("empty", ""));
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "");
}

// The first and last well-formed byte sequences of Unicode table 3-7, and ill-formed ones next to
// them.
TEST(CheckUtf8Test, FirstInvalidSequenceIsNamed) {
  for (const char* good : {"", "a\n\x7F", "\xC2\x80\xDF\xBF", "\xE0\xA0\x80\xED\x9F\xBF",
                           "\xEE\x80\x80\xEF\xBF\xBF", "\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(CheckUtf8(good, "text").ok()) << good;
  }
  EXPECT_TRUE(CheckUtf8(std::string("a\0b", 3), "text").ok());
  for (const char* bad :
       {"\x80", "\xC1\xBF", "\xC3", "\xC3(", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE2\x82",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF0\x9F\x99", "\xF5\x80\x80\x80", "\xFF"}) {
    const absl::Status status = CheckUtf8(absl::StrCat("\xC3\xA9", bad, "z"), "text");
    EXPECT_EQ(status.message(), "text is not valid UTF-8 at byte 2") << bad;
  }
}

TEST(ReadTextFileTest, FolderIsRefused) {
  TestFolder folder;
  const absl::Status status = ReadTextFile(folder.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(folder.path()), HasSubstr("is a folder")));
}

TEST(ReadTextFileTest, ReadErrorIsReported) {
  // Opening /proc/self/mem succeeds, but a read at offset 0 fails with EIO, because no memory is
  // mapped there.
  const absl::Status status = ReadTextFile("/proc/self/mem").status();
  EXPECT_THAT(status.message(), HasSubstr("cannot read /proc/self/mem"));
}

TEST(ReadTextFileTest, StandardInputErrorIsReported) {
  TestFolder folder;
  const int saved = ::dup(STDIN_FILENO);
  const int unreadable = ::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_GE(unreadable, 0);
  ::dup2(unreadable, STDIN_FILENO);
  const absl::Status status = ReadTextFile("-").status();
  ::dup2(saved, STDIN_FILENO);
  ::close(unreadable);
  ::close(saved);
  std::clearerr(stdin);
  std::cin.clear();
  EXPECT_THAT(status.message(), HasSubstr("cannot read standard input"));
}

TEST(ReadTextFileTest, EndlessFileRefusedAtLimit) {
  EXPECT_THAT(ReadTextFile("/dev/zero").status().message(),
              AllOf(HasSubstr("/dev/zero"), HasSubstr("the limit is 12582912")));
}

TEST(ReadTextFileTest, MissingFileIsNamed) {
  const absl::Status status = ReadTextFile("/nonexistent/chat.json").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("/nonexistent/chat.json"));
}

}  // namespace
}  // namespace hearth
