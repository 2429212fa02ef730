// Tests Anthropic's Messages API on a worker whose model is a stand-in, so answers are random text
// within the limits of the grammar.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "services/openai/openai_server.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/serving/http_caller.h"
#include "tests/support/sanitized.h"
#include "tests/support/test_certificates.h"

namespace hearth {
namespace {

using AnswerJson = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kPath[] = "/v1/messages", kCountPath[] = "/v1/messages/count_tokens";
constexpr char kJsonType[] = "Content-Type: application/json\r\n";

class MessagesServerTest : public ::testing::Test {
 protected:
  MessagesServerTest() { Serve(nullptr); }
  // Starts the server again. `identities`: null: tokens are not checked.
  void Serve(Identities* identities, int context_tokens = 4096, HttpLimits limits = {}) {
    openai_ = nullptr;
    WorkerServer::Options options = WorkerServer::Invariant();
    options.geometry.context_tokens = context_tokens;
    options.identities = identities;
    server_ = std::make_unique<WorkerServer>(options);
    OpenAiOptions openai;
    openai.http.listen = "127.0.0.1:0";
    openai.http.limits = limits;
    openai.generator = server_->generator();
    openai.admission = server_->admission();
    openai.model = "gemma-3";
    openai.origins = {"https://chat.example.com"};
    openai_ = OpenAiServer::Open(openai).value();
  }
  // Returns the whole response, including its headers.
  std::string Ask(const std::string& line, const std::string& headers, const std::string& body) {
    HttpCaller caller(openai_->address());
    caller.Say(absl::StrCat(line, " HTTP/1.0\r\nHost: localhost\r\n", headers,
                            "Content-Length: ", body.size(), "\r\n\r\n", body));
    return caller.HearAll();
  }
  std::string Post(const std::string& path, const AnswerJson& body) {
    return Ask("POST " + path, kJsonType, body.dump());
  }
  static AnswerJson BodyOf(const std::string& response) {
    return AnswerJson::parse(response.substr(response.find("\r\n\r\n") + 4), nullptr, false);
  }
  AnswerJson Answer(const AnswerJson& body, const std::string& path = kPath) {
    const std::string response = Post(path, body);
    EXPECT_THAT(response, StartsWith("HTTP/1.1 200")) << response;
    return BodyOf(response);
  }
  // Sends the request as a stream. Returns the message that a client joins from the events.
  AnswerJson Streamed(AnswerJson body) {
    body["stream"] = true;
    const std::string response = Post(kPath, body);
    EXPECT_THAT(response, HasSubstr("Content-Type: text/event-stream"));
    AnswerJson message;
    std::string input;
    for (const absl::string_view line : absl::StrSplit(response, '\n')) {
      if (!absl::StartsWith(line, "data: ")) continue;
      const AnswerJson event = AnswerJson::parse(line.substr(6), nullptr, false);
      const std::string type = event["type"];
      if (type == "message_start") message = event["message"];
      if (type == "content_block_start") {
        EXPECT_EQ(event["index"], message["content"].size());
        message["content"].push_back(event["content_block"]);
        input.clear();
      } else if (type == "content_block_delta") {
        AnswerJson& block = message["content"].back();
        if (event["delta"]["type"] == "text_delta") {
          block["text"] =
              block["text"].get<std::string>() + event["delta"]["text"].get<std::string>();
        } else {
          input += event["delta"]["partial_json"].get<std::string>();
        }
      } else if (type == "content_block_stop" && !input.empty()) {
        message["content"].back()["input"] = AnswerJson::parse(input, nullptr, false);
      } else if (type == "message_delta") {
        message["stop_reason"] = event["delta"]["stop_reason"];
        message["stop_sequence"] = event["delta"]["stop_sequence"];
        message["usage"] = event["usage"];
      }
    }
    EXPECT_THAT(response, HasSubstr("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"));
    return message;
  }

  SecretFolder folder_;
  std::unique_ptr<Identities> identities_;
  std::unique_ptr<WorkerServer> server_;
  std::unique_ptr<OpenAiServer> openai_;
};

AnswerJson Tool(const std::string& name, const AnswerJson& properties) {
  AnswerJson required = AnswerJson::array();
  for (const auto& [key, schema] : properties.items()) required.push_back(key);
  return {
      {"name", name},
      {"input_schema", {{"type", "object"}, {"properties", properties}, {"required", required}}}};
}

AnswerJson Chat() {
  return {{"model", "gemma-3"},
          {"system", "You keep a lighthouse."},
          {"messages", {{{"role", "user"}, {"content", "the keeper of the lamp"}}}},
          {"max_tokens", 12},
          {"temperature", 1},
          {"seed", 7}};
}

AnswerJson ChatWithTools() {
  AnswerJson body = Chat();
  body["tools"] = {
      Tool("lamp", {{"is_lit", {{"type", "boolean"}}}, {"oil", {{"enum", {"a", "b"}}}}}),
      Tool("door", AnswerJson::object())};
  body["max_tokens"] = 300;
  return body;
}

TEST_F(MessagesServerTest, TextEqualsTextOfChat) {
  const AnswerJson said = Answer(Chat());
  AnswerJson chat = Chat();
  chat["messages"].insert(chat["messages"].begin(),
                          AnswerJson({{"role", "system"}, {"content", chat["system"]}}));
  chat.erase("system");
  const AnswerJson other = Answer(chat, "/v1/chat/completions");
  ASSERT_EQ(said["content"].size(), 1u);
  EXPECT_EQ(said["content"][0]["text"], other["choices"][0]["message"]["content"]);
  EXPECT_EQ(said["stop_reason"], "max_tokens");
  EXPECT_EQ(said["model"], "gemma-3");
  EXPECT_THAT(said["id"].get<std::string>(), StartsWith("msg_"));
  const AnswerJson& usage = said["usage"];
  EXPECT_EQ(usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>() +
                usage["cache_creation_input_tokens"].get<int>(),
            other["usage"]["prompt_tokens"].get<int>());
  EXPECT_EQ(usage["output_tokens"], other["usage"]["completion_tokens"]);
}

TEST_F(MessagesServerTest, StreamEqualsWholeAnswer) {
  AnswerJson any = ChatWithTools();
  any["tool_choice"] = {{"type", "any"}};
  for (AnswerJson body : {Chat(), any}) {
    std::set<std::string> reasons;
    for (int seed = 0; seed < 4; ++seed) {
      body["seed"] = seed;
      AnswerJson whole = Answer(body), streamed = Streamed(body);
      whole.erase("id");
      streamed.erase("id");
      for (AnswerJson* message : {&whole, &streamed}) {
        (*message).erase("usage");  // the second answer restores more
        for (AnswerJson& block : (*message)["content"]) block.erase("id");
      }
      EXPECT_EQ(whole, streamed) << body;
      reasons.insert(whole["stop_reason"]);
    }
    if (body.contains("tools")) {
      EXPECT_EQ(reasons.count("tool_use"), 1u);
    }
  }
}

TEST_F(MessagesServerTest, NamedToolIsCalledOnce) {
  AnswerJson body = ChatWithTools();
  body["tool_choice"] = {{"type", "tool"}, {"name", "lamp"}};
  const AnswerJson said = Answer(body);
  ASSERT_EQ(said["content"].size(), 1u);
  EXPECT_EQ(said["stop_reason"], "tool_use");
  EXPECT_EQ(said["content"][0]["type"], "tool_use");
  EXPECT_EQ(said["content"][0]["name"], "lamp");
  EXPECT_TRUE(said["content"][0]["input"]["is_lit"].is_boolean());
  body["messages"].push_back({{"role", "assistant"}, {"content", said["content"]}});
  body["messages"].push_back({{"role", "user"},
                              {"content",
                               {{{"type", "tool_result"},
                                 {"tool_use_id", said["content"][0]["id"]},
                                 {"content", "ok"}}}}});
  const AnswerJson next = Answer(body);
  EXPECT_NE(next["content"][0]["id"], said["content"][0]["id"]);
}

TEST_F(MessagesServerTest, StopSequenceIsNamed) {
  AnswerJson body = Chat();
  const std::string text = Answer(body)["content"][0]["text"];
  ASSERT_GE(text.size(), 6u);
  body["stop_sequences"] = {"never in the text", text.substr(text.size() - 3)};
  const AnswerJson said = Answer(body);
  EXPECT_EQ(said["stop_reason"], "stop_sequence");
  EXPECT_EQ(said["stop_sequence"], body["stop_sequences"][1]);
}

TEST_F(MessagesServerTest, CountEqualsTokensOfPrompt) {
  AnswerJson body = ChatWithTools();
  const AnswerJson counted = Answer(body, kCountPath);
  EXPECT_EQ(counted.size(), 1u);
  const AnswerJson usage = Answer(body)["usage"];
  EXPECT_EQ(counted["input_tokens"].get<int>(),
            usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>() +
                usage["cache_creation_input_tokens"].get<int>());
  body["messages"].push_back({{"role", "assistant"}, {"content", "lit"}});
  EXPECT_GT(Answer(body, kCountPath)["input_tokens"], counted["input_tokens"]);
}

TEST_F(MessagesServerTest, ErrorsHaveAnthropicForm) {
  Identities::Options identities;
  identities.file =
      folder_.Write("identities.json",
                    absl::StrCat(R"({"identities":[{"name":"a","role":"tenant","token_sha256":")",
                                 DigestHex(Sha256("right")), "\"}]}"));
  identities_ = Identities::Open(identities).value();
  Serve(identities_.get());
  const std::string key = "X-Api-Key: right\r\n", json = kJsonType + key;
  const std::string one = Chat().dump();
  const auto with = [](const char* name, const AnswerJson& value) {
    AnswerJson body = Chat();
    body[name] = value;
    return body.dump();
  };
  for (const std::string path : {kPath, kCountPath}) {
    const std::string post = "POST " + path;
    const std::vector<std::pair<std::string, const char*>> errors = {
        {Ask(post, json, with("max_tokens", "x")), "400 invalid_request_error"},
        {Ask(post, json, "{"), "400 invalid_request_error"},
        {Ask(post, json, with("thread", {{"type", "create"}})), "400 invalid_request_error"},
        {Ask(post, kJsonType, one), "401 authentication_error"},
        {Ask(post, std::string(kJsonType) + "X-Api-Key: wrong\r\n", one),
         "401 authentication_error"},
        {Ask(post, json + "Origin: https://evil.example.com\r\n", one), "403 permission_error"},
        {Ask(post, json, with("model", "other")), "404 not_found_error"},
        {Ask(post + "/none", json, one), "404 not_found_error"},
        {Ask("GET " + path, json, ""), "405 invalid_request_error"},
        {Ask(post, key, one), "415 invalid_request_error"}};
    for (const auto& [response, want] : errors) {
      const AnswerJson body = BodyOf(response);
      ASSERT_TRUE(body.is_object()) << response;
      EXPECT_EQ(body["type"], "error") << response;
      EXPECT_EQ(absl::StrCat(response.substr(9, 3), " ", body["error"].value("type", "")), want);
      EXPECT_FALSE(body["error"].value("message", "").empty());
      EXPECT_THAT(response, HasSubstr("\r\nRequest-Id: "));
    }
    EXPECT_THAT(Ask(post, json + "X-Request-Id: abc\r\n", one),
                HasSubstr("\r\nRequest-Id: abc\r\n"));
  }
  server_->admission()->Close();
  EXPECT_EQ(BodyOf(Ask("POST /v1/messages", json, one))["error"]["type"], "overloaded_error");
}

TEST_F(MessagesServerTest, LongPromptErrorHasBothNumbers) {
  AnswerJson body = Chat();
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "lamp ";
  body["messages"][0]["content"] = text;
  for (const bool streams : {false, true}) {
    body["stream"] = streams;
    const std::string response = Post(kPath, body);
    EXPECT_THAT(response, StartsWith("HTTP/1.1 400"));
    EXPECT_THAT(
        BodyOf(response)["error"]["message"].get<std::string>(),
        testing::MatchesRegex("prompt is too long: (more than )?[0-9]+ tokens > 4096 maximum"));
  }
  EXPECT_GT(Answer(body, kCountPath)["input_tokens"], 4096) << "clients count before they shorten";
}

TEST_F(MessagesServerTest, OwnErrorsOfServerHaveAnthropicForm) {
  const std::string large(2048, 'a');
  const auto say = [&](const std::string& text) {
    HttpCaller caller(openai_->address());
    caller.Say(text);
    return caller.HearAll();
  };
  const auto check = [&](const std::string& response, const char* want) {
    const AnswerJson body = BodyOf(response);
    ASSERT_TRUE(body.is_object()) << response;
    EXPECT_EQ(absl::StrCat(response.substr(9, 3), " ", body["error"].value("type", "")), want);
    EXPECT_EQ(body["type"], "error") << response;
    EXPECT_THAT(response, testing::ContainsRegex("\r\nRequest-Id: [^\r]")) << response;
  };
  const auto begin = [](const std::string& path) {
    return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: localhost\r\n");
  };
  HttpLimits limits;
  limits.body_bytes = limits.header_bytes = 1024;
  // Each short limit has its own server, because on a busy machine other requests would exceed it.
  HttpLimits short_header = limits, short_body = limits;
  short_header.header_time = short_body.request_time = absl::Milliseconds(500);
  Serve(nullptr, 4096, short_header);
  std::string late;
  // A connection whose first byte is late is closed without an answer.
  for (int i = 0; late.empty() && i < 100; ++i) late = say(begin(kPath) + "A: b\r\nA");
  check(late, "408 invalid_request_error");
  Serve(nullptr, 4096, short_body);
  late =
      say(absl::StrCat(begin(kPath), kJsonType, "X-Request-Id: abc\r\nContent-Length: 9\r\n\r\n"));
  check(late, "408 invalid_request_error");
  EXPECT_THAT(late, HasSubstr("\r\nRequest-Id: abc\r\n"));
  Serve(nullptr, 4096, limits);
  for (const std::string path : {kPath, kCountPath, "/v1/messages/batches"}) {
    const std::string post = begin(path);
    check(say(absl::StrCat("POST ", path, " HTTP/1.0\r\nHost: evil.example.com\r\n\r\n")),
          "403 permission_error");
    check(say(absl::StrCat(post, kJsonType, "Content-Length: 2048\r\n\r\n", large)),
          "413 request_too_large");
    check(say(absl::StrCat(post, "A: ", large, "\r\n\r\n")), "431 invalid_request_error");
    check(say(absl::StrCat(post, "A: ", large)), "431 invalid_request_error");
  }
  EXPECT_TRUE(
      BodyOf(say("POST /v1/completions HTTP/1.0\r\nHost: a.b\r\n\r\n"))["error"].contains("param"))
      << "OpenAI's form";
  openai_->Drain();
  check(say("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n\r\n"), "503 overloaded_error");
}

// Claude Code 2.1.177 changes the first system block with each request.
TEST_F(MessagesServerTest, BillingLineDoesNotBreakPrefix) {
  AnswerJson body = Chat();
  std::string rules;
  for (int i = 0; i < 40; ++i) rules += "Climb the stairs. ";
  const auto ask = [&](const char* checksum) {
    const std::string line = absl::StrCat("x-anthropic-billing-header: cch=", checksum, ";");
    body["system"] = {{{"type", "text"}, {"text", line}}, {{"type", "text"}, {"text", rules}}};
    return Answer(body);
  };
  const AnswerJson first = ask("36ee5");
  body["messages"].push_back({{"role", "assistant"}, {"content", first["content"]}});
  body["messages"].push_back({{"role", "user"}, {"content", "and the oil?"}});
  const AnswerJson usage = ask("0aaa9")["usage"];
  EXPECT_GT(usage["cache_read_input_tokens"], 40 * 3) << usage;
}

TEST_F(MessagesServerTest, WrongPathPrefixErrorNamesBaseUrl) {
  for (const char* path : {"/v1/v1/messages", "/messages", "/v1/v1/messages/count_tokens"}) {
    EXPECT_THAT(Post(path, Chat()), HasSubstr("the client's base URL must be http://HOST:PORT\""))
        << path;
  }
}

// The headers that Anthropic's client for JavaScript sends.
TEST_F(MessagesServerTest, PreflightAllowsClientHeaders) {
  const std::string asked =
      "anthropic-beta,anthropic-dangerous-direct-browser-access,anthropic-version,content-type,"
      "x-api-key,x-stainless-arch,x-stainless-helper-method,x-stainless-timeout";
  const std::string origin = "Origin: https://chat.example.com\r\n";
  const std::string response = Ask("OPTIONS /v1/messages",
                                   absl::StrCat(origin, "Access-Control-Request-Method: POST\r\n",
                                                "Access-Control-Request-Headers: ", asked, "\r\n"),
                                   "");
  EXPECT_THAT(response, StartsWith("HTTP/1.1 204"));
  EXPECT_THAT(response, HasSubstr("Access-Control-Allow-Headers: " + asked + "\r\n"));
  EXPECT_THAT(Ask("POST /v1/messages", kJsonType + origin, Chat().dump()),
              HasSubstr("Access-Control-Expose-Headers: request-id, "));
}

TEST_F(MessagesServerTest, RecordedBodiesAreAnswered) {
  size_t answered = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(absl::StrCat(HEARTH_TEST_DATA_DIR, "/clients"))) {
    std::ifstream in(file.path());
    const AnswerJson cases = AnswerJson::parse(in)["cases"];
    for (const AnswerJson& one : cases) {
      const std::string path = one.value("path", "");
      if (!absl::StartsWith(path, kPath)) continue;
      for (AnswerJson body : one["bodies"]) {
        if (path == kPath) body["max_tokens"] = 8;
        EXPECT_THAT(Post(path, body),
                    StartsWith(absl::StrCat("HTTP/1.1 ", one.value("status", 200))))
            << file.path() << one["case"];
        ++answered;
      }
    }
  }
  EXPECT_EQ(answered, 23u);
}

// Every field with a value of every JSON type. "@" is replaced by the value.
// JSON of a body's fields; @ stands for a value.
constexpr const char* kFields[] = {
    R"("model": @)",
    R"("messages": @)",
    R"("max_tokens": @)",
    R"("system": @)",
    R"("stop_sequences": @)",
    R"("stream": @)",
    R"("temperature": @)",
    R"("top_k": @)",
    R"("top_p": @)",
    R"("seed": @)",
    R"("tools": @)",
    R"("tool_choice": @)",
    R"("thread": @)",
    R"("thinking": @)",
    R"("metadata": @)",
    R"("cache_control": @)",
    R"("output_config": @)",
    R"("output_format": @)",
    R"("context_management": @)",
    R"("mcp_servers": @)",
    R"("container": @)",
    R"("output_config": {"format": @})",
    R"("output_config": {"format": {"type": "json_schema", "schema": @}})",
    R"("system": [@])",
    R"("system": [{"type": "text", "text": @}])",
    R"("messages": [@])",
    R"("messages": [{"role": @, "content": "a"}])",
    R"("messages": [{"role": "user", "content": @}])",
    R"("messages": [{"role": "user", "content": [@]}])",
    R"("messages": [{"role": "user", "content": [{"type": @, "text": "a"}]}])",
    R"("messages": [{"role": "user", "content": [{"type": "text", "text": @}]}])",
    R"("messages": [{"role": "user", "content": [{"type": "text", "text": "a",
          "cache_control": @}]}])",
    R"("messages": [{"role": "user", "content": [{"type": "text", "text": "a",
          "cache_control": {"type": "ephemeral", "ttl": @}}]}])",
    R"("messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": @,
          "name": "f"}]}, {"role": "user", "content": "a"}])",
    R"("messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1",
          "name": @}]}, {"role": "user", "content": "a"}])",
    R"("messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1",
          "name": "f", "input": @}]}, {"role": "user", "content": "a"}])",
    R"("messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a",
          "name": "f"}]}, {"role": "user", "content": [{"type": "tool_result",
          "tool_use_id": @}]}])",
    R"("messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a",
          "name": "f"}]}, {"role": "user", "content": [{"type": "tool_result",
          "tool_use_id": "a", "content": @}]}])",
    R"("messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a",
          "name": "f"}]}, {"role": "user", "content": [{"type": "tool_result",
          "tool_use_id": "a", "is_error": @}]}])",
    R"("tools": [{"name": "a", "defer_loading": true}], "messages": [{"role": "assistant",
          "content": [{"type": "tool_use", "id": "a", "name": "f"}]}, {"role": "user",
          "content": [{"type": "tool_result", "tool_use_id": "a", "content": [
          {"type": "tool_reference", "tool_name": @}]}]}])",
    R"("tools": [@])",
    R"("tools": [{"name": @}])",
    R"("tools": [{"name": "a", "type": @}])",
    R"("tools": [{"name": "a", "description": @}])",
    R"("tools": [{"name": "a", "input_schema": @}])",
    R"("tools": [{"name": "a", "strict": @}])",
    R"("tools": [{"name": "a", "defer_loading": @}])",
    R"("tools": [{"name": "a", "allowed_callers": @}])",
    R"("tools": [{"name": "a"}], "tool_choice": {"type": @})",
    R"("tools": [{"name": "a"}], "tool_choice": {"type": "tool", "name": @})",
    R"("tools": [{"name": "a"}], "tool_choice": {"type": "any",
          "disable_parallel_tool_use": @})"};

// Values of every JSON type; LONG stands for a long string.
constexpr const char* kValues[] = {"null",
                                   "true",
                                   "false",
                                   "0",
                                   "-1",
                                   "7",
                                   "18446744073709551615",
                                   "0.5",
                                   "1e300",
                                   "\"a\"",
                                   "\"\"",
                                   "\"text\"",
                                   "\"\\ud83d\\ude00\\u0000\"",
                                   "LONG",
                                   "[]",
                                   "[1]",
                                   "[null]",
                                   "[\"a\"]",
                                   "[[1]]",
                                   "[{}]",
                                   "{}",
                                   R"({"a": 1})",
                                   R"({"type": 1})",
                                   R"({"type": "text"})",
                                   R"({"type": "json_schema", "schema": {}})",
                                   R"({"a": {"b": []}})"};

TEST_F(MessagesServerTest, EveryFieldTypeGetsAnswer) {
  const std::string text = absl::StrCat("\"", std::string(5000, 'x'), "\"");
  const std::set<std::string> allowed = {"200", "400", "404"};
  const size_t step = kIsSanitized ? 9 : 1;  // a sanitizer tries three values of each field
  size_t served = 0, refused = 0, first = 0;
  Serve(nullptr, /*context_tokens=*/48);  // a short context keeps answers short
  for (const char* const field : kFields) {
    for (size_t i = first++ % step; i < std::size(kValues); i += step) {
      const std::string value = absl::StrReplaceAll(kValues[i], {{"LONG", text}});
      std::string inside = field;
      inside.replace(inside.find('@'), 1, value);
      if (!absl::StrContains(inside, "\"messages\"")) {
        inside += R"(, "messages": [{"role": "user", "content": "the lamp"}])";
      }
      if (!absl::StrContains(inside, "\"max_tokens\"")) inside += R"(, "max_tokens": 1)";
      const std::string body = absl::StrCat("{", inside, "}");
      for (const char* const path : {kPath, kCountPath}) {
        const std::string response = Ask(absl::StrCat("POST ", path), kJsonType, body);
        ASSERT_GE(response.size(), 12u) << body;
        ASSERT_EQ(allowed.count(response.substr(9, 3)), 1u) << response << body;
        (response.substr(9, 3) == "200" ? served : refused) += 1;
      }
    }
  }
  EXPECT_GT(served, 300u / step);
  EXPECT_GT(refused, 500u / step);
}

}  // namespace
}  // namespace hearth
