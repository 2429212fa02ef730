// In later turns of a chat, the prompt has the same tokens as the earlier answers.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/services/inference/worker_server.h"

namespace hearth {
namespace {

// If the text of an answer were encoded again, its tokens might differ from the generated tokens.
TEST(ChatTurns, AnswerTokensAreReusedNextTurn) {
  WorkerServer server(WorkerServer::Invariant());
  v1::GenerateRequest request;
  v1::Chat* chat = request.mutable_prompt()->mutable_chat();
  const auto add = [&](const char* role, const std::string& text) {
    v1::ChatMessage* message = chat->add_messages();
    message->set_role(role);
    message->add_parts()->set_text(text);
    return message;
  };
  request.set_max_new_tokens(40);
  request.set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(2);
  uint32_t unlike = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    chat->clear_messages();
    add("user", absl::StrCat("the keeper ", seed));
    request.mutable_sampling()->set_seed(seed);
    const Generation first = server.Generate(request);
    v1::ChatMessage* answer = add("model", first.text);
    add("user", "and the lamp");
    const uint32_t as_text = server.Generate(request).started.cached_tokens();
    answer = chat->mutable_messages(1);
    answer->mutable_token_ids()->Add(first.ids.begin(), first.ids.end());
    const uint32_t as_tokens = server.Generate(request).started.cached_tokens();
    if (first.text.find('<') == first.text.npos &&
        first.text.find("\xEF\xBF\xBD") == first.text.npos) {
      EXPECT_GE(as_tokens, first.started.prompt_tokens() + 39) << first.text;
    }
    EXPECT_GE(as_tokens, as_text);
    unlike += as_tokens > as_text;
  }
  EXPECT_GT(unlike, 0u) << "no answer showed the difference";
}

TEST(ChatTurns, ConsecutiveMessagesMergeIntoTurns) {
  WorkerServer server(WorkerServer::Invariant());
  const auto text_of = [&](const std::vector<std::pair<const char*, const char*>>& messages) {
    v1::TokenizeRequest request;
    for (const auto& [role, text] : messages) {
      v1::ChatMessage* message = request.mutable_prompt()->mutable_chat()->add_messages();
      message->set_role(role);
      message->add_parts()->set_text(text);
    }
    v1::TokenizeResponse response;
    grpc::ClientContext context;
    const grpc::Status status = server.stub()->Tokenize(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.text();
  };
  EXPECT_EQ(
      text_of({{"system", "a"},
               {"developer", "b"},
               {"user", "c"},
               {"user", "d"},
               {"system", "e"},
               {"model", "f"},
               {"assistant", "g"},
               {"user", "h"}}),
      text_of(
          {{"system", "a\n\nb"}, {"user", "c\n\nd\n\ne"}, {"assistant", "f\n\ng"}, {"user", "h"}}));
}

}  // namespace
}  // namespace hearth
