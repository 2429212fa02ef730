#include "services/hearthctl/chat_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hearth {
namespace {

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

TEST(ChatFileTest, AMessagesBreakpointIsAtItsEnd) {
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

TEST(ChatFileTest, NamesTheMessageThatIsWrong) {
  EXPECT_THAT(ErrorOf("{"), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("not a list"));
  EXPECT_THAT(ErrorOf("[1]"), HasSubstr("messages[0] is not an object"));
  EXPECT_THAT(ErrorOf(R"([{"content": "a"}])"), HasSubstr("messages[0] has no role"));
  EXPECT_THAT(ErrorOf(R"([{"role": "user"}])"), HasSubstr("messages[0] has no content"));
  EXPECT_THAT(ErrorOf(R"([{"role": "user", "content": 1}])"), HasSubstr("no string and no list"));
  EXPECT_THAT(ErrorOf(R"([{"role": "user", "content": [{"text": "a", "cache": true}]}])"),
              HasSubstr("messages[0].content[0] has the field \"cache\""));
  EXPECT_THAT(ErrorOf(R"([{"role": "user", "content": [{}]}])"), HasSubstr("has no text"));
  EXPECT_THAT(ErrorOf(R"([{"role": "user", "content": "a", "cache_breakpoint": 1}])"),
              HasSubstr("messages[0] has a cache_breakpoint that is not true or false"));
  EXPECT_THAT(ErrorOf(R"([{"role": "user", "content": [], "cache_breakpoint": true}])"),
              HasSubstr("messages[0] has a cache_breakpoint and nothing before it"));
  EXPECT_THAT(ErrorOf(R"([{"role": "user", "content": "a", "cache_brakpoint": true}])"),
              HasSubstr("messages[0] has the unknown field \"cache_brakpoint\""));
}

TEST(ChatFileTest, AMissingFileIsNamed) {
  const absl::Status status = ReadTextFile("/nonexistent/chat.json").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("/nonexistent/chat.json"));
}

}  // namespace
}  // namespace hearth
