// Tests the HTTP APIs of a worker whose model has its own chat template. The model is a stand-in,
// so answers are random text within the limits of the grammar.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "services/openai/openai_server.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/serving/http_caller.h"
#include "tests/worker/text/tiny_tokenizer.h"

namespace hearth {
namespace {

using ChatJson = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class OwnTemplateTest : public ::testing::Test {
 protected:
  void Serve(const std::string& chat_template) {
    WorkerServer::Options options = WorkerServer::Invariant();
    options.geometry.context_tokens = 4096;
    options.chat_template = chat_template;
    server_ = std::make_unique<WorkerServer>(options);
    OpenAiOptions http;
    http.http.listen = "127.0.0.1:0";
    http.generator = server_->generator();
    http.admission = server_->admission();
    http.model = "tiny";
    openai_ = OpenAiServer::Open(http).value();
  }
  // Returns the body of the response, after checking its status.
  ChatJson Post(const std::string& path, const ChatJson& body, int status = 200) {
    const std::string text = body.dump();
    HttpCaller caller(openai_->address());
    caller.Say(absl::StrCat("POST ", path, " HTTP/1.0\r\nHost: localhost\r\n",
                            "Content-Type: application/json\r\nContent-Length: ", text.size(),
                            "\r\n\r\n", text));
    const std::string answer = caller.HearAll();
    EXPECT_THAT(answer, StartsWith(absl::StrCat("HTTP/1.1 ", status))) << answer;
    return ChatJson::parse(answer.substr(answer.find("\r\n\r\n")), nullptr, false);
  }
  ChatJson Chat(const ChatJson& body) { return Post("/v1/chat/completions", body); }
  std::string ChatError(const ChatJson& body) {
    return Post("/v1/chat/completions", body, 400)["error"]["message"];
  }
  // Returns the text of the prompt.
  std::string Rendered(const ChatJson& body) {
    const std::vector<int32_t> ids = Post("/tokenize", body)["tokens"];
    return TinyTokenizer().Decode(ids, /*skip_special=*/false);
  }
  static std::string FileOf(const std::string& name) {
    return ReadTestFile("own_templates/" + name + ".jinja");
  }

  std::unique_ptr<WorkerServer> server_;
  std::unique_ptr<OpenAiServer> openai_;
};

ChatJson ChatAboutLamp() {
  return {{"messages", {{{"role", "user"}, {"content", "the keeper of the lamp"}}}},
          {"max_tokens", 200},
          {"temperature", 1},
          {"seed", 7}};
}

ChatJson ChatWithLamp() {
  ChatJson body = ChatAboutLamp();
  body["tools"] = {{{"type", "function"},
                    {"function",
                     {{"name", "lamp"},
                      {"parameters",
                       {{"type", "object"},
                        {"properties", {{"is_lit", {{"type", "boolean"}}}}},
                        {"required", {"is_lit"}}}}}}}};
  return body;
}

TEST_F(OwnTemplateTest, TemplateRendersOrRefusesChats) {
  Serve(
      "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
      "{{ raise_exception('No <system> here.') }}{% endif %}[{{ m.role }}] {{ m.content }}\n"
      "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}");
  EXPECT_EQ(Rendered({{"messages", {{{"role", "user"}, {"content", "the lamp"}}}}}),
            "<bos>[user] the lamp\n[assistant] ");
  EXPECT_EQ(Chat(ChatAboutLamp())["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(
      ChatError({{"messages", {{{"role", "system"}, {"content", "the lamp"}}}}}),
      "messages: the model's chat template, DIR/chat_template.jinja, says: No <system> here.");
}

// The template reads no tools, so the system text lists them, as with Gemma's template.
TEST_F(OwnTemplateTest, TemplateWithoutToolsGetsThemAsText) {
  Serve("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}");
  ChatJson body = ChatWithLamp();
  EXPECT_THAT(Rendered({{"messages", body["messages"]}, {"tools", body["tools"]}}),
              AllOf(StartsWith("<bos>[system] You have access to functions."),
                    HasSubstr("{\"name\": \"lamp\""), HasSubstr("}\n[user] the keeper")));
}

TEST_F(OwnTemplateTest, ToolsCallsAndResultsReachTemplate) {
  Serve(FileOf("chatml"));
  ChatJson body = ChatWithLamp();
  const ChatJson function = {{"name", "lamp"}, {"arguments", "{\"is_lit\":true}"}};
  body["messages"].push_back(
      {{"role", "assistant"},
       {"content", nullptr},
       {"tool_calls", {{{"id", "c1"}, {"type", "function"}, {"function", function}}}}});
  body["messages"].push_back({{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "lit"}});
  const std::string text = Rendered({{"messages", body["messages"]}, {"tools", body["tools"]}});
  EXPECT_THAT(text,
              HasSubstr("<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"lamp\""));
  EXPECT_THAT(text,
              HasSubstr("<tool_call>\n{\"name\": \"lamp\", \"arguments\": {\"is_lit\": true}}"));
  EXPECT_THAT(text, HasSubstr("<tool_response>\nlit\n</tool_response>"));
}

// Each turn restores the prompt of the turn before it.
TEST_F(OwnTemplateTest, TurnRestoresEarlierTurn) {
  Serve(FileOf("chatml"));
  ChatJson body = ChatAboutLamp();
  body["max_tokens"] = 6;
  int before = 0;
  for (int turn = 0; turn < 3; ++turn) {
    const ChatJson answer = Chat(body);
    const ChatJson& usage = answer["usage"];
    EXPECT_GE(usage["prompt_tokens_details"]["cached_tokens"], before) << turn << usage;
    before = usage["prompt_tokens"];
    body["messages"].push_back({{"role", "assistant"}, {"content", "lit"}});
    body["messages"].push_back({{"role", "user"}, {"content", "and the sea?"}});
  }
  EXPECT_GT(before, 0);
}

TEST_F(OwnTemplateTest, OtherCallFormRefusesRequiredCalls) {
  Serve(FileOf("instructions"));
  ChatJson body = ChatWithLamp();
  EXPECT_EQ(Chat(body)["choices"][0]["message"].count("tool_calls"), 0) << "auto";
  body["tool_choice"] = "none";
  Chat(body);
  const ChatJson named = {{"type", "function"}, {"function", {{"name", "lamp"}}}};
  for (const ChatJson& choice : {ChatJson("required"), named}) {
    body["tool_choice"] = choice;
    EXPECT_THAT(ChatError(body), StartsWith("tool_choice: must be auto or none: the model's chat "
                                            "template, DIR/chat_template.jinja, does not write"));
  }
}

TEST_F(OwnTemplateTest, JsonCallFormServesRequiredCalls) {
  for (const char* const file : {"chatml", "headers"}) {
    Serve(FileOf(file));
    ChatJson body = ChatWithLamp();
    body["tool_choice"] = "required";
    const ChatJson choice = Chat(body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls") << file << choice;
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << file << choice;
    const ChatJson& function = choice["message"]["tool_calls"][0]["function"];
    EXPECT_EQ(function["name"], "lamp");
    EXPECT_TRUE(ChatJson::parse(function["arguments"].get<std::string>())["is_lit"].is_boolean());
    openai_.reset();  // before the worker
  }
}

}  // namespace
}  // namespace hearth
