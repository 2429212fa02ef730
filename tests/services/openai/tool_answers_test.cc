// Tests answers with calls and JSON. The model is a stand-in, so answers are random text within the
// limits of the grammar.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "services/openai/openai_server.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/serving/http_caller.h"

namespace hearth {
namespace {

using ChatJson = nlohmann::ordered_json;
using ::testing::StartsWith;

class ToolAnswersTest : public ::testing::Test {
 protected:
  ToolAnswersTest() {
    OpenAiOptions options;
    options.http.listen = "127.0.0.1:0";
    options.generator = server_.generator();
    options.admission = server_.admission();
    options.model = "gemma-3";
    openai_ = OpenAiServer::Open(options).value();
  }
  static WorkerServer::Options Options() {
    WorkerServer::Options options = WorkerServer::Invariant();
    options.geometry.context_tokens = 4096;
    return options;
  }
  // Sends a POST request. Returns the whole response, including its headers.
  // `headers`: more lines of the request's header, each with its line end.
  std::string Post(const ChatJson& body, const std::string& headers = "",
                   const std::string& path = "/v1/chat/completions") {
    const std::string text = body.dump();
    HttpCaller caller(openai_->address());
    caller.Say(absl::StrCat("POST ", path, " HTTP/1.0\r\nHost: localhost\r\n", headers,
                            "Content-Type: application/json\r\nContent-Length: ", text.size(),
                            "\r\n\r\n", text));
    return caller.HearAll();
  }
  ChatJson Answer(const ChatJson& body, const std::string& headers = "") {
    const std::string answer = Post(body, headers);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200")) << answer;
    return ChatJson::parse(answer.substr(answer.find("\r\n\r\n")), nullptr, false);
  }
  std::string Error(const ChatJson& body) {
    const std::string answer = Post(body);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400")) << answer;
    return ChatJson::parse(answer.substr(answer.find("\r\n\r\n")))["error"]["message"];
  }
  // Sends the request as a stream. Returns its choices, joined from the events.
  std::vector<ChatJson> Streamed(ChatJson body) {
    body["stream"] = true;
    std::vector<ChatJson> choices(body.value("n", 1));
    for (ChatJson& choice : choices) choice = {{"content", ""}, {"tool_calls", ChatJson::array()}};
    const std::string answer = Post(body);
    for (const absl::string_view line : absl::StrSplit(answer, '\n')) {
      if (!absl::StartsWith(line, "data: {")) continue;
      const ChatJson said = ChatJson::parse(line.substr(6));
      for (const ChatJson& event : said["choices"]) {
        Join(event, &choices[event["index"].get<size_t>()]);
      }
    }
    return choices;
  }
  static void Join(const ChatJson& event, ChatJson* choice) {
    const ChatJson& delta = event["delta"];
    if (delta.contains("content") && !delta["content"].is_null()) {
      (*choice)["content"] =
          (*choice)["content"].get<std::string>() + delta["content"].get<std::string>();
    }
    for (const ChatJson& call : delta.value("tool_calls", ChatJson::array())) {
      ChatJson& calls = (*choice)["tool_calls"];
      const size_t index = call["index"];
      if (call.contains("id")) {
        EXPECT_EQ(index, calls.size()) << "a call begins once";
        calls.push_back({{"id", call["id"]},
                         {"type", call["type"]},
                         {"function", {{"name", call["function"]["name"]}, {"arguments", ""}}}});
      }
      std::string& arguments = calls[index]["function"]["arguments"].get_ref<std::string&>();
      arguments += call["function"]["arguments"].get<std::string>();
    }
    if (!event["finish_reason"].is_null()) (*choice)["finish_reason"] = event["finish_reason"];
  }

  WorkerServer server_{Options()};
  std::unique_ptr<OpenAiServer> openai_;
};

ChatJson Function(const std::string& name, const ChatJson& properties) {
  ChatJson required = ChatJson::array();
  for (const auto& [key, schema] : properties.items()) required.push_back(key);
  return {
      {"type", "function"},
      {"function",
       {{"name", name},
        {"parameters", {{"type", "object"}, {"properties", properties}, {"required", required}}}}}};
}

ChatJson ChatWithTools() {
  return {{"messages", {{{"role", "user"}, {"content", "the keeper of the lamp"}}}},
          {"tools",
           {Function("lamp", {{"is_lit", {{"type", "boolean"}}}, {"oil", {{"enum", {"a", "b"}}}}}),
            Function("door", ChatJson::object())}},
          {"max_tokens", 300},
          {"temperature", 1},
          {"seed", 7}};
}

TEST_F(ToolAnswersTest, StreamedRequiredCallsEqualWholeAnswer) {
  std::set<std::string> names, ids;
  for (int seed = 0; seed < 8; ++seed) {
    ChatJson body = ChatWithTools();
    body["tool_choice"] = "required";
    body["seed"] = seed;
    body["n"] = 2;
    const ChatJson whole = Answer(body)["choices"];
    const std::vector<ChatJson> streamed = Streamed(body);
    for (size_t i = 0; i < whole.size(); ++i) {
      const ChatJson& message = whole[i]["message"];
      EXPECT_EQ(whole[i]["finish_reason"], streamed[i]["finish_reason"]);
      const std::string text = message["content"].is_null() ? "" : message["content"];
      EXPECT_EQ(text, streamed[i]["content"]);
      const ChatJson calls = message.value("tool_calls", ChatJson::array());
      ASSERT_EQ(calls.size(), streamed[i]["tool_calls"].size());
      for (size_t k = 0; k < calls.size(); ++k) {
        EXPECT_EQ(calls[k]["function"], streamed[i]["tool_calls"][k]["function"]);
        EXPECT_TRUE(ids.insert(calls[k]["id"]).second);
      }
      if (whole[i]["finish_reason"] != "tool_calls") continue;
      EXPECT_TRUE(message["content"].is_null());
      for (const ChatJson& call : calls) {
        names.insert(call["function"]["name"]);
        const ChatJson arguments =
            ChatJson::parse(call["function"]["arguments"].get<std::string>());
        const bool is_lamp = call["function"]["name"] == "lamp";
        ASSERT_EQ(arguments.size(), is_lamp ? 2u : 0u) << arguments;
        EXPECT_EQ(is_lamp, arguments.contains("is_lit")) << arguments;
      }
    }
  }
  EXPECT_EQ(names, (std::set<std::string>{"door", "lamp"}));
}

TEST_F(ToolAnswersTest, NamedToolIsCalledOnce) {
  ChatJson body = ChatWithTools();
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "lamp"}}}};
  for (int seed = 0; seed < 4; ++seed) {
    body["seed"] = seed;
    const ChatJson choice = Answer(body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "lamp");
  }
}

TEST_F(ToolAnswersTest, StopStringInArgumentsFinishesWithStop) {
  ChatJson body = ChatWithTools();
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "lamp"}}}};
  body["stop"] = "\"oil\"";
  const ChatJson whole = Answer(body)["choices"][0];
  EXPECT_EQ(whole["finish_reason"], "stop");
  EXPECT_EQ(whole["message"]["tool_calls"][0]["function"]["name"], "lamp");
  EXPECT_EQ(Streamed(body)[0]["finish_reason"], "stop");
}

TEST_F(ToolAnswersTest, FirstDeltaWithPossibleCallsHasNoContent) {
  ChatJson body = ChatWithTools();
  body["stream"] = true;
  body["max_tokens"] = 2;
  const auto has = [&](const std::string& content) {
    return absl::StrContains(
        Post(body), absl::StrCat(R"("delta":{"role":"assistant","content":)", content, "}"));
  };
  EXPECT_TRUE(has("null"));
  body["tool_choice"] = "none";
  EXPECT_TRUE(has("\"\""));
}

TEST_F(ToolAnswersTest, CallIdsDifferInLaterRounds) {
  ChatJson body = ChatWithTools();
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "door"}}}};
  std::set<std::string> ids;
  for (int round = 0; round < 3; ++round) {
    const ChatJson message = Answer(body, "X-Request-Id: one\r\n")["choices"][0]["message"];
    EXPECT_TRUE(ids.insert(message["tool_calls"][0]["id"]).second);
    body["messages"].push_back(message);
    body["messages"].push_back(
        {{"role", "tool"}, {"tool_call_id", message["tool_calls"][0]["id"]}, {"content", "open"}});
  }
}

TEST_F(ToolAnswersTest, OptionConflictWithGrammarNamesBodyPath) {
  ChatJson body = ChatWithTools();
  body["min_tokens"] = 3;
  EXPECT_EQ(Error(body), "tools: cannot be combined with min_tokens 3");
  body.erase("min_tokens");
  body["ignore_eos"] = true;
  body.erase("tools");
  body["guided_json"] = ChatJson::object();
  EXPECT_EQ(Error(body), "guided_json: cannot be combined with ignore_eos");
}

TEST_F(ToolAnswersTest, TruncatedCallFinishesWithLength) {
  ChatJson body = ChatWithTools();
  body["tool_choice"] = "required";
  body["max_tokens"] = 5;
  EXPECT_EQ(Answer(body)["choices"][0]["finish_reason"], "length");
}

TEST_F(ToolAnswersTest, AutoWithoutCallAnswersLikeNone) {
  ChatJson body = ChatWithTools();
  body["max_tokens"] = 40;
  body["logprobs"] = true;
  const ChatJson open = Answer(body);
  body["tool_choice"] = "none";
  const ChatJson none = Answer(body);
  EXPECT_EQ(open["choices"], none["choices"]);
  EXPECT_FALSE(open["choices"][0]["message"].contains("tool_calls"));
  EXPECT_EQ(open["usage"]["prompt_tokens"], none["usage"]["prompt_tokens"]);
  body.erase("tool_choice");
  EXPECT_EQ(Streamed(body)[0]["content"], open["choices"][0]["message"]["content"]);
}

TEST_F(ToolAnswersTest, ResponseFormatConstrainsText) {
  ChatJson body = ChatWithTools();
  body["response_format"] = {
      {"type", "json_schema"},
      {"json_schema", {{"name", "x"}, {"schema", {{"enum", {"left", "right"}}}}}}};
  body["tool_choice"] = "none";
  const std::string text = Answer(body)["choices"][0]["message"]["content"];
  EXPECT_TRUE(text == "\"left\"" || text == "\"right\"") << text;
  body.erase("tool_choice");
  const ChatJson either = Answer(body)["choices"][0];
  EXPECT_EQ(either["finish_reason"] == "tool_calls", either["message"]["content"].is_null());
}

TEST_F(ToolAnswersTest, StrictSchemaErrorNamesBodyPath) {
  ChatJson body = ChatWithTools();
  ChatJson& function = body["tools"][1]["function"];
  function["parameters"]["properties"] = {{"x", {{"not", ChatJson::object()}}}};
  body["max_tokens"] = 2;
  Answer(body);  // the tool is not strict, so its keyword `not` is ignored
  function["strict"] = true;
  EXPECT_THAT(Error(body), StartsWith("tools[1].function.parameters.properties.x.not: "));
  body["tools"].erase(0);
  EXPECT_THAT(Error(body), StartsWith("tools[0].function.parameters.properties.x.not: "));
  body.erase("tools");
  body["guided_json"] = {{"items", {{"not", ChatJson::object()}}}};
  EXPECT_THAT(Error(body), StartsWith("guided_json.items.not: "));
  body["tools"] = ChatWithTools()["tools"];  // none is strict
  EXPECT_THAT(Error(body), StartsWith("guided_json.items.not: "));
}

TEST_F(ToolAnswersTest, RecordedBodiesAreAnswered) {
  size_t answered = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(absl::StrCat(HEARTH_TEST_DATA_DIR, "/clients"))) {
    std::ifstream in(file.path());
    const ChatJson recorded = ChatJson::parse(in);
    for (const ChatJson& one : recorded["cases"]) {
      const std::string path = one.value("path", "/v1/chat/completions");
      const int status = one.value("status", 200);
      if (absl::StartsWith(path, "/v1/messages")) continue;
      for (ChatJson body : one["bodies"]) {
        body[path == "/v1/responses" ? "max_output_tokens" : "max_tokens"] = 8;
        const std::string answer = Post(body, "", path);
        EXPECT_THAT(answer, StartsWith(absl::StrCat("HTTP/1.1 ", status)))
            << file.path() << one["case"];
        if (path == "/v1/responses" && status == 200 && body.value("stream", false)) {
          EXPECT_TRUE(absl::StrContains(answer, "\nevent: response.incomplete\n") ||
                      absl::StrContains(answer, "\nevent: response.completed\n"))
              << answer;
        }
        ++answered;
      }
    }
  }
  EXPECT_GT(answered, 60u);
}

}  // namespace
}  // namespace hearth
