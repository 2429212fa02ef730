#include "services/hearthctl/warm_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(const std::string& yaml) {
  return std::string(ParseWarmFile(yaml, ".").status().message());
}

TEST(WarmFileTest, PromptsAndChatsAreParsed) {
  TestFolder folder;
  folder.Write("book.txt", "A book.");
  auto entries = ParseWarmFile(R"(
prompts:
  - name: book
    text_file: book.txt
    breakpoints: [3]
    pin: true
    ttl: 36h
  - token_ids: [2, 10, 11]
chats:
  - name: assistant
    messages:
      - role: system
        content: Be brief.
        cache_breakpoint: true
      - role: user
        content:
          - {text: "a", cache_breakpoint: true}
          - {text: "b"}
    generation_prompt: false
)",
                               folder.path());
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 3u);
  EXPECT_EQ((*entries)[0].prompt.text(), "A book.");
  EXPECT_THAT((*entries)[0].prompt.breakpoints(), ElementsAre(3));
  EXPECT_TRUE((*entries)[0].pin);
  EXPECT_EQ((*entries)[0].ttl_s, 36u * 3600);
  EXPECT_EQ((*entries)[1].ttl_s, 0u);
  EXPECT_EQ((*entries)[1].name, "prompts[1]");
  EXPECT_THAT((*entries)[1].prompt.token_ids().ids(), ElementsAre(2, 10, 11));
  const v1::Chat& chat = (*entries)[2].prompt.chat();
  EXPECT_TRUE(chat.omit_generation_prompt());
  EXPECT_TRUE(chat.messages(0).parts(0).cache_breakpoint());
  EXPECT_TRUE(chat.messages(1).parts(0).cache_breakpoint());
  EXPECT_FALSE(chat.messages(1).parts(1).cache_breakpoint());
}

TEST(WarmFileTest, ErrorNamesLineAndReason) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf("a: [1"), HasSubstr("line"));
  EXPECT_THAT(ErrorOf("prompts: []"), HasSubstr("no prompts and no chats"));
  EXPECT_THAT(ErrorOf("prompt:\n  - text: a\n"), HasSubstr("line 1: unknown key \"prompt\""));
  EXPECT_THAT(ErrorOf("prompts:\n  - text: a\n    pinn: true\n"),
              HasSubstr("line 3: unknown key \"pinn\""));
  EXPECT_THAT(ErrorOf("prompts:\n  - name: a\n"), HasSubstr("line 2: a prompt needs exactly one"));
  EXPECT_THAT(ErrorOf("prompts:\n  - token_ids: [a]\n"), HasSubstr("line 2"));
  EXPECT_THAT(ErrorOf("prompts:\n  - text_file: nowhere.txt\n"), HasSubstr("nowhere.txt"));
  EXPECT_THAT(ErrorOf("prompts:\n  - text_file: \"\"\n"), HasSubstr("line 2: text_file must not"));
  EXPECT_THAT(ErrorOf("prompts:\n  - text: a\n    ttl: soon\n"),
              HasSubstr("line 3: ttl: must be a duration of at least 1s"));
  EXPECT_THAT(ErrorOf("chats:\n  - name: a\n"), HasSubstr("needs a list of messages"));
  EXPECT_THAT(ErrorOf("chats:\n  - messages:\n    - {role: user}\n"),
              HasSubstr("role and content"));
}

}  // namespace
}  // namespace hearth
