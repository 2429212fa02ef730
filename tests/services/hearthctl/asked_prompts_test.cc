// The prompts of hearthctl ask against those of the whole texts, by a tokenizer whose last token
// depends on what follows it.
#include "services/hearthctl/ask/asked_prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kBos = 2;

uint32_t IdOf(const std::string& piece) {
  return 100 + static_cast<uint32_t>(std::hash<std::string>()(piece) % 1000000);
}

// One token for each word with the space before it.
std::vector<uint32_t> Words(const std::string& text) {
  std::vector<uint32_t> ids = {kBos};
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    end = std::min(text.find(' ', begin + 1), text.size());
    ids.push_back(IdOf(text.substr(begin, end - begin)));
  }
  return ids;
}
// Pieces of seven bytes from the start: each depends on all before it.
std::vector<uint32_t> Sevens(const std::string& text) {
  std::vector<uint32_t> ids = {kBos};
  for (size_t at = 0; at < text.size(); at += 7) ids.push_back(IdOf(text.substr(at, 7)));
  return ids;
}

class AskedPromptsTest : public ::testing::Test {
 protected:
  absl::StatusOr<AskedPrompts> Make(const v1::PromptInput& context,
                                    const std::vector<std::string>& endings) {
    std::vector<AskedQuestion> questions;
    for (const std::string& ending : endings) {
      questions.emplace_back();
      questions.back().text = ending;
    }
    const auto in_turn = [](size_t count, const std::function<void(size_t)>& work) {
      for (size_t i = 0; i < count; ++i) work(i);
    };
    const auto tokenize = [this](const v1::PromptInput& input) {
      std::string text = input.text();
      for (const v1::ChatMessage& message : input.chat().messages()) {
        text += message.role();
        for (const v1::ContentPart& part : message.parts()) text += " " + part.text();
      }
      sizes_.push_back(text.size());
      if (text.find("refused") != text.npos) {
        return absl::StatusOr<v1::TokenizeResponse>(absl::InvalidArgumentError("no such text"));
      }
      v1::TokenizeResponse made;
      for (const uint32_t id : tokenizer_(text)) made.add_token_ids(id);
      return absl::StatusOr<v1::TokenizeResponse>(made);
    };
    return AskedPrompts::Make(context, questions, tokenize, in_turn);
  }
  static std::vector<uint32_t> IdsOf(const v1::PromptInput& prompt) {
    return {prompt.token_ids().ids().begin(), prompt.token_ids().ids().end()};
  }
  static v1::PromptInput TextOf(const std::string& text) {
    v1::PromptInput input;
    input.set_text(text);
    return input;
  }
  static std::string LongText() {
    std::string text = "Once";
    for (int i = 0; text.size() < 20000; ++i)
      text += " the keeper of lamp number" + std::string(i % 5, 'x');
    return text + " saw a light";
  }

  std::function<std::vector<uint32_t>(const std::string&)> tokenizer_ = Words;
  std::vector<size_t> sizes_;  // of the texts that were turned into tokens
};

const std::vector<std::string> kEndings = {" and", "house was", "\n\nQuestion: Who?", " a b c d"};

TEST_F(AskedPromptsTest, ALongTextsEndAloneIsTurnedIntoTokensAgain) {
  const std::string text = LongText();
  const auto prompts = Make(TextOf(text), kEndings);
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  for (size_t i = 0; i < kEndings.size(); ++i) {
    EXPECT_EQ(IdsOf(*prompts->PromptOf(i)), Words(text + kEndings[i])) << kEndings[i];
  }
  EXPECT_EQ(std::count_if(sizes_.begin(), sizes_.end(), [](size_t size) { return size > 2000; }),
            1);
}

TEST_F(AskedPromptsTest, TheBoundaryIsBeforeTheFirstTokenThatAQuestionChanges) {
  const std::string text = LongText();
  const auto whole = Make(TextOf(text), {" and", " so"});
  EXPECT_EQ(whole->boundary(), Words(text).size());
  EXPECT_EQ(IdsOf(whole->Shared()), Words(text));
  const auto less = Make(TextOf(text), {" and", "house was"});
  EXPECT_EQ(less->boundary(), Words(text).size() - 1);
  EXPECT_THAT(less->Shared().breakpoints(), ElementsAre(less->boundary()));
  EXPECT_THAT(less->PromptOf(0)->breakpoints(), ElementsAre(less->boundary()));
}

TEST_F(AskedPromptsTest, ATextWhoseEndHasOtherTokensAloneIsTakenAsAWhole) {
  tokenizer_ = Sevens;
  const std::string text = LongText();
  const auto prompts = Make(TextOf(text), kEndings);
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  for (size_t i = 0; i < kEndings.size(); ++i) {
    EXPECT_EQ(IdsOf(*prompts->PromptOf(i)), Sevens(text + kEndings[i])) << kEndings[i];
  }
}

TEST_F(AskedPromptsTest, AQuestionThatTheUserAsksLastIsPartOfThatMessage) {
  v1::PromptInput chat;
  v1::ChatMessage* const message = chat.mutable_chat()->add_messages();
  message->set_role("user");
  message->add_parts()->set_text("A text.");
  EXPECT_EQ(IdsOf(*Make(chat, {"Who?"})->PromptOf(0)), Words("user A text. Who?"));
  message->set_role("model");
  EXPECT_EQ(IdsOf(*Make(chat, {"Who?"})->PromptOf(0)), Words("model A text.user Who?"));
}

TEST_F(AskedPromptsTest, ARefusedQuestionIsNoOthersError) {
  const auto prompts = Make(TextOf("A short text"), {" refused", " and"});
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  EXPECT_THAT(std::string(prompts->PromptOf(0).status().message()), HasSubstr("no such text"));
  EXPECT_EQ(IdsOf(*prompts->PromptOf(1)), Words("A short text and"));
  EXPECT_EQ(Make(TextOf("refused"), {" and"}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace hearth
