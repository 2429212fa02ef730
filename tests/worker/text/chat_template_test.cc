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

// As apply_chat_template(continue_final_message=True) of transformers.
TEST(ChatTemplate, ContinuedAnswerStaysOpen) {
  const std::string begin = "<bos><start_of_turn>user\na<end_of_turn>\n";
  EXPECT_EQ(Render({Message("user", "a"), Message("assistant", " b ")}, ChatEnding::kContinued),
            begin + "<start_of_turn>model\nb");
  EXPECT_EQ(Render({Message("user", "a"), Message("assistant", "b")}, ChatEnding::kClosed),
            begin + "<start_of_turn>model\nb<end_of_turn>\n");
  EXPECT_EQ(Render({Message("user", "a")}, ChatEnding::kContinued),
            "chat.messages[0].role: must be assistant or model if continue_final_message is set");
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

TEST(ChatTemplate, StripsTextExceptSystemText) {
  EXPECT_EQ(Render({Message("system", " s\n"), Message("user", "\xC2\xA0u\xE3\x80\x80\n"),
                    Message("model", "\n m ")},
                   ChatEnding::kClosed),
            "<bos><start_of_turn>user\n s\n\n\nu<end_of_turn>\n"
            "<start_of_turn>model\nm<end_of_turn>\n");
  EXPECT_EQ(Render({{"user", {Text(" a "), Text("\tb\n")}}}, ChatEnding::kClosed),
            "<bos><start_of_turn>user\nab<end_of_turn>\n");
}

TEST(ChatTemplate, SystemMessageKeepsAllParts) {
  EXPECT_EQ(Render({{"system", {Text("rules "), Text("tools")}}}, ChatEnding::kOpen),
            "<bos><start_of_turn>user\nrules tools\n\n");
}

TEST(ChatTemplate, UnfinishedUserTurnStaysOpen) {
  EXPECT_EQ(Render({Message("system", "s"), Message("user", " a b \n")}, ChatEnding::kOpen),
            "<bos><start_of_turn>user\ns\n\na b \n");
  EXPECT_EQ(Render({Message("user", "a"), Message("model", "b ")}, ChatEnding::kOpen),
            "<bos><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n");
}

TEST(ChatTemplate, AdjacentMessagesOfOneRoleJoin) {
  EXPECT_EQ(Render({Message("user", " a\n"), Message("user", "b"), Message("assistant", "c"),
                    Message("model", " d"), Message("user", "e")},
                   ChatEnding::kGenerationPrompt),
            "<bos><start_of_turn>user\na\n\nb<end_of_turn>\n<start_of_turn>model\nc\n\nd"
            "<end_of_turn>\n<start_of_turn>user\ne<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(Render({Message("user", "a"), Message("user", " b ")}, ChatEnding::kOpen),
            "<bos><start_of_turn>user\na\n\nb ");
  EXPECT_EQ(Render({Message("user", "a"), Message("assistant", "b"), Message("assistant", "c")},
                   ChatEnding::kContinued),
            "<bos><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb\n\nc");
}

TEST(ChatTemplate, EmptyMessageAddsNoBlankLine) {
  EXPECT_EQ(Render({Message("user", ""),
                    Message("user", "a"),
                    Message("user", " \n"),
                    {"assistant", {}},
                    Message("assistant", "b"),
                    {"assistant", {}}},
                   ChatEnding::kClosed),
            "<bos><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n");
  EXPECT_EQ(
      Render({Message("user", "a"), {"assistant", {}}, Message("user", "b")}, ChatEnding::kClosed),
      "<bos><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\n<end_of_turn>\n"
      "<start_of_turn>user\nb<end_of_turn>\n");
}

TEST(ChatTemplate, LaterSystemMessageBecomesUserText) {
  EXPECT_EQ(Render({Message("system", "r"), Message("developer", "s"), Message("user", "a"),
                    Message("system", " t "), Message("assistant", "b"), Message("developer", "u"),
                    Message("user", "c")},
                   ChatEnding::kClosed),
            "<bos><start_of_turn>user\nr\n\ns\n\na\n\nt<end_of_turn>\n"
            "<start_of_turn>model\nb<end_of_turn>\n"
            "<start_of_turn>user\nu\n\nc<end_of_turn>\n");
}

TEST(ChatTemplate, ChatMayBeginWithAnswer) {
  EXPECT_EQ(Render({Message("assistant", "a"), Message("user", "b")}, ChatEnding::kClosed),
            "<bos><start_of_turn>model\na<end_of_turn>\n<start_of_turn>user\nb<end_of_turn>\n");
  const std::string system = "<bos><start_of_turn>user\ns\n\n<end_of_turn>\n";
  EXPECT_EQ(Render({Message("system", "s"), Message("model", "a")}, ChatEnding::kClosed),
            system + "<start_of_turn>model\na<end_of_turn>\n");
  EXPECT_EQ(Render({Message("system", "s")}, ChatEnding::kGenerationPrompt),
            system + "<start_of_turn>model\n");
}

TEST(ChatTemplate, UnknownRoleIsRefusedByIndex) {
  const auto kEnd = ChatEnding::kGenerationPrompt;
  EXPECT_EQ(Render({}, kEnd), "chat.messages: must not be empty");
  EXPECT_EQ(Render({Message("user", "a"), Message("tool", "b")}, kEnd),
            "chat.messages[1].role: must be system, developer, user, assistant or model; got "
            "\"tool\"");
  EXPECT_THAT(Render({Message("", "a")}, kEnd), HasSubstr("chat.messages[0].role: must be"));
  EXPECT_EQ(RenderChat({}, kEnd).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChatTemplate, JoinedMessagesKeepTheirBreakpoints) {
  const auto chat =
      RenderChat({Message("system", "rules", true), Message("system", "tools"),
                  Message("user", "first", true), Message("user", "again"),
                  Message("assistant", "an answer", true), Message("assistant", "more")},
                 ChatEnding::kClosed);
  ASSERT_TRUE(chat.ok()) << chat.status();
  std::vector<std::string> ends, declared;
  for (size_t i = 0; i < chat->breakpoints.size(); ++i) {
    const size_t at = chat->breakpoints[i];
    ends.push_back(chat->text.substr(at - 6, 6));
    if (chat->declared[i]) declared.push_back(ends.back());
  }
  EXPECT_THAT(ends, ElementsAre("ules\n\n", "ools\n\n", "\nfirst", "model\n", "answer"));
  EXPECT_THAT(declared, ElementsAre("ules\n\n", "\nfirst", "answer"));
}

TEST(ChatTemplate, SystemTextAndTurnsGetBreakpoints) {
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
