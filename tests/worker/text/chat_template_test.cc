#include "worker/text/chat_template.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/worker/text/tiny_tokenizer.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ChatPart Text(const std::string& text, bool breakpoint = false) { return {text, breakpoint}; }
ChatMessage Message(const std::string& role, const std::string& text, bool breakpoint = false) {
  return {role, {Text(text, breakpoint)}};
}

ChatMessage FromJson(const nlohmann::json& json) {
  ChatMessage message{json["role"], {}};
  if (json["content"].is_string()) return Message(json["role"], json["content"]);
  for (const auto& part : json["content"]) message.parts.push_back(Text(part["text"]));
  return message;
}

std::string Render(const std::vector<ChatMessage>& messages, ChatEnding ending) {
  const auto chat = RenderChat(messages, ending);
  return chat.ok() ? chat->text : std::string(chat.status().message());
}

// As apply_chat_template(continue_final_message=True) has it.
TEST(ChatTemplate, AnswerThatIsContinuedHasNoEnd) {
  const std::string begin = "<bos><start_of_turn>user\na<end_of_turn>\n";
  EXPECT_EQ(Render({Message("user", "a"), Message("assistant", " b ")}, ChatEnding::kContinued),
            begin + "<start_of_turn>model\nb");
  EXPECT_EQ(Render({Message("user", "a"), Message("assistant", "b")}, ChatEnding::kClosed),
            begin + "<start_of_turn>model\nb<end_of_turn>\n");
  EXPECT_EQ(Render({Message("user", "a")}, ChatEnding::kContinued),
            "chat.messages[0]: must be the assistant's with continue_final_message: it is "
            "continued");
}

TEST(ChatTemplate, RendersThePublishedExamples) {
  const auto examples = nlohmann::json::parse(ReadTestFile("chat_template_examples.json"));
  ASSERT_GE(examples.size(), 5U);
  for (const auto& example : examples) {
    std::vector<ChatMessage> messages;
    for (const auto& message : example["messages"]) messages.push_back(FromJson(message));
    const ChatEnding ending =
        example["add_generation_prompt"] ? ChatEnding::kGenerationPrompt : ChatEnding::kClosed;
    EXPECT_EQ(Render(messages, ending), example["text"].get<std::string>()) << example["name"];
  }
}

TEST(ChatTemplate, StripsUserAndModelTextButNotSystemText) {
  EXPECT_EQ(Render({Message("system", " s\n"), Message("user", "\xC2\xA0u\xE3\x80\x80\n"),
                    Message("model", "\n m ")},
                   ChatEnding::kClosed),
            "<bos><start_of_turn>user\n s\n\n\nu<end_of_turn>\n"
            "<start_of_turn>model\nm<end_of_turn>\n");
  EXPECT_EQ(Render({{"user", {Text(" a "), Text("\tb\n")}}}, ChatEnding::kClosed),
            "<bos><start_of_turn>user\nab<end_of_turn>\n");
}

TEST(ChatTemplate, WritesEveryPartOfASystemMessage) {
  EXPECT_EQ(Render({{"system", {Text("rules "), Text("tools")}}}, ChatEnding::kOpen),
            "<bos><start_of_turn>user\nrules tools\n\n");
}

TEST(ChatTemplate, LeavesAnUnfinishedUserTurnOpen) {
  EXPECT_EQ(Render({Message("system", "s"), Message("user", " a b \n")}, ChatEnding::kOpen),
            "<bos><start_of_turn>user\ns\n\na b \n");
  EXPECT_EQ(Render({Message("user", "a"), Message("model", "b ")}, ChatEnding::kOpen),
            "<bos><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n");
}

TEST(ChatTemplate, NamesTheMessageThatBreaksTheOrder) {
  const auto kEnd = ChatEnding::kGenerationPrompt;
  EXPECT_THAT(Render({}, kEnd), HasSubstr("chat.messages: must not be empty"));
  EXPECT_THAT(Render({Message("assistant", "a")}, kEnd), HasSubstr("chat.messages[0]: roles must"));
  EXPECT_THAT(Render({Message("user", "a"), Message("user", "b")}, kEnd),
              HasSubstr("chat.messages[1]: roles must alternate"));
  EXPECT_THAT(Render({Message("system", "s"), Message("model", "b")}, kEnd),
              HasSubstr("chat.messages[1]: roles must alternate"));
  EXPECT_THAT(Render({Message("user", "a"), Message("system", "s")}, kEnd),
              HasSubstr("chat.messages[1]: a system message must be the first"));
  EXPECT_THAT(Render({Message("system", "a"), Message("system", "s")}, kEnd),
              HasSubstr("chat.messages[1]: a system message must be the first"));
  EXPECT_THAT(Render({Message("tool", "a")}, kEnd), HasSubstr("chat.messages[0]: role \"tool\""));
  EXPECT_THAT(Render({Message("system", "s")}, kEnd), HasSubstr("chat.messages[0]: a system"));
  EXPECT_EQ(RenderChat({}, kEnd).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChatTemplate, BreakpointsEndTheSystemTextAndOpenEveryModelTurn) {
  const auto chat = RenderChat({{"system", {Text("rules", true), Text("tools", true)}},
                                Message("user", "a ", true),
                                Message("assistant", "b"),
                                Message("user", "c")},
                               ChatEnding::kGenerationPrompt);
  ASSERT_TRUE(chat.ok()) << chat.status();
  std::vector<std::string> ends;
  for (const size_t at : chat->breakpoints) {
    const size_t from = at < 6 ? 0 : at - 6;
    ends.push_back(chat->text.substr(from, at - from));
  }
  EXPECT_THAT(ends, ElementsAre("\nrules", "ools\n\n", "ols\n\na", "model\n", "model\n"));
  EXPECT_EQ(chat->breakpoints.back(), chat->text.size());
}

}  // namespace
}  // namespace hearth
