// Tests requests of Anthropic's Messages API: parsing, the prompt, and the allowed answers.
#include "services/openai/messages_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "proto/error_reason.h"
#include "services/openai/openai_fields.h"
#include "services/openai/responses_request.h"
#include "tests/services/openai/hostile_bodies.h"
#include "tests/support/sanitized.h"

namespace hearth {
namespace {

using MessagesJson = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

absl::StatusOr<OpenAiRequest> ParseText(const std::string& text, bool is_count = false) {
  const auto body = ParseBody(text);
  EXPECT_TRUE(body.ok()) << body.status() << text;
  return is_count ? ParseCountTokens(body->root()) : ParseMessages(body->root());
}

constexpr char kUser[] = R"({"role": "user", "content": "q"})";

// Returns a body with the messages and, separated by a comma, the fields.
std::string BodyOf(const std::string& fields, const std::string& messages = kUser) {
  return absl::StrCat("{\"messages\": [", messages, "]", fields.empty() ? "" : ", ", fields, "}");
}

OpenAiRequest Parsed(const std::string& fields, const std::string& messages = kUser) {
  absl::StatusOr<OpenAiRequest> request = ParseText(BodyOf(fields, messages));
  EXPECT_TRUE(request.ok()) << request.status();
  return *std::move(request);
}

std::string ErrorOf(const std::string& fields, const std::string& messages = kUser) {
  return std::string(ParseText(BodyOf(fields, messages)).status().message());
}

// Returns each message as "ROLE|PART|PART", with "*" after a part that ends at a breakpoint.
std::vector<std::string> Texts(const OpenAiRequest& request) {
  std::vector<std::string> texts;
  for (const v1::ChatMessage& message : request.prompts[0].chat().messages()) {
    std::string text = message.role();
    for (const v1::ContentPart& part : message.parts()) {
      absl::StrAppend(&text, "|", part.text(), part.cache_breakpoint() ? "*" : "");
    }
    texts.push_back(text);
  }
  return texts;
}

constexpr char kCalls[] = R"({"role": "user", "content": "q"}, {"role": "assistant", "content": [
    {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Look."},
    {"type": "redacted_thinking", "data": "x"},
    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Paris", "n": 1.5}},
    {"type": "tool_use", "id": "t2", "name": "clock", "input": {}}]})";
constexpr char kTools[] = R"("tools": [{"name": "weather", "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
    {"name": "clock", "strict": true}])";

TEST(MessagesRequest, OmittedFieldsTakeDefaults) {
  const OpenAiRequest request = Parsed(R"("model": "m", "nobody": {"knows": 1})");
  EXPECT_EQ(request.model, "m");
  EXPECT_TRUE(request.is_chat);
  EXPECT_FALSE(request.stream || request.prewarm);
  EXPECT_EQ(request.common.n(), 1u);
  EXPECT_EQ(request.common.max_new_tokens(), 4096u);
  EXPECT_TRUE(request.common.fits_context() && request.common.report_writes());
  EXPECT_TRUE(request.common.sampling().server_defaults());
  EXPECT_FALSE(request.common.sampling().has_temperature());
  EXPECT_TRUE(request.prompts.at(0).chat().strict());
  EXPECT_EQ(request.unknown.Text(), "nobody");
  EXPECT_THAT(Texts(request), ElementsAre("user|q"));
}

TEST(MessagesRequest, AnswerFieldsAreParsed) {
  const OpenAiRequest request = Parsed(
      R"("max_tokens": 5, "stream": true, "temperature": 0.5, "top_k": 4, "top_p": 0.25, "seed": 3,
         "stop_sequences": ["x", "", "y"], "presence_penalty": 1)");
  EXPECT_TRUE(request.stream);
  EXPECT_EQ(request.common.max_new_tokens(), 5u);
  EXPECT_EQ(request.common.sampling().temperature(), 0.5f);
  EXPECT_EQ(request.common.sampling().top_k(), 4u);
  EXPECT_EQ(request.common.sampling().top_p(), 0.25f);
  EXPECT_EQ(request.common.sampling().seed(), 3u);
  EXPECT_THAT(request.common.stop(), ElementsAre("x", "y"));
  EXPECT_EQ(request.common.sampling().presence_penalty(), 0) << "not a field of this API";
  EXPECT_EQ(request.unknown.Text(), "presence_penalty");
}

TEST(MessagesRequest, ZeroMaxTokensStoresPrompt) {
  EXPECT_TRUE(Parsed(R"("max_tokens": 0)").prewarm);
  EXPECT_FALSE(Parsed(R"("max_tokens": 1)").prewarm);
  EXPECT_THAT(ErrorOf(R"("max_tokens": 0, "stream": true)"),
              StartsWith("stream: must be false if max_tokens is 0"));
}

// The same conversation must have the same prompt in all APIs, so that the APIs share the cache.
TEST(MessagesRequest, PromptEqualsPromptOfChat) {
  const auto chat = ParseBody(R"({"tools": [{"type": "function", "function": {"name": "weather",
      "description": "Weather of a city", "parameters": {"type": "object", "properties": {"city":
      {"type": "string"}}}}}, {"type": "function", "function": {"name": "clock"}}],
      "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"},
      {"role": "assistant", "content": "Look.", "tool_calls": [
        {"id": "t1", "type": "function", "function": {"name": "weather",
         "arguments": "{\"city\":\"Paris\",\"n\":1.5}"}},
        {"id": "t2", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "t1", "content": [{"type": "text", "text": "18 C, "},
       {"type": "text", "text": "```dry```"}]},
      {"role": "tool", "tool_call_id": "t2", "content": "12:00"},
      {"role": "user", "content": [{"type": "text", "text": "And"},
                                   {"type": "text", "text": "now?"}]},
      {"role": "system", "content": "Hurry."}, {"role": "user", "content": "?"}]})");
  const auto want = ParseChat(chat->root());
  ASSERT_TRUE(want.ok()) << want.status();
  const OpenAiRequest made = Parsed(absl::StrCat(kTools, R"(, "system": "Be brief.")"),
                                    absl::StrCat(kCalls, R"(, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t2", "content": "12:00"},
        {"type": "tool_result", "tool_use_id": "t1", "is_error": false, "content": [
          {"type": "text", "text": "18 C, "}, {"type": "text", "text": "```dry```"}]},
        {"type": "text", "text": "And"}, {"type": "text", "text": "now?"}]},
        {"role": "system", "content": [{"type": "text", "text": "Hurry."}]},
        {"role": "user", "content": "?"})"));
  EXPECT_EQ(made.prompts[0].DebugString(), want->prompts[0].DebugString());
  EXPECT_EQ(made.earlier_calls, 2u);
  EXPECT_EQ(made.earlier_calls, want->earlier_calls);
}

// Blocks of an answer are items of the Responses API.
TEST(MessagesRequest, AnswerBlocksGiveSamePromptAsItems) {
  const auto items = ParseBody(R"({"input": [{"role": "user", "content": "q"},
      {"role": "assistant", "content": "One."}, {"role": "assistant", "content": "Two."},
      {"type": "function_call", "call_id": "t1", "name": "f", "arguments": "{\"a\":1}"},
      {"type": "function_call", "call_id": "t2", "name": "g", "arguments": "{}"},
      {"role": "assistant", "content": "Three."},
      {"type": "function_call", "call_id": "t3", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "t1", "output": "r"}]})");
  const auto want = ParseResponses(items->root());
  ASSERT_TRUE(want.ok()) << want.status();
  const OpenAiRequest made = Parsed("", R"({"role": "user", "content": "q"},
      {"role": "assistant", "content": [{"type": "text", "text": "One."},
        {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Two."},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "t2", "name": "g", "input": {}},
        {"type": "text", "text": "Three."},
        {"type": "tool_use", "id": "t3", "name": "f", "input": {}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": "r"}]})");
  EXPECT_EQ(made.prompts[0].DebugString(), want->prompts[0].DebugString());
  EXPECT_EQ(made.earlier_calls, want->earlier_calls);
}

// Claude Code 2.1.177 changes the line with each request, 2.1.332 with each conversation.
TEST(MessagesRequest, BillingLineIsLeftOut) {
  const auto prompt = [](const std::string& line) {
    return Parsed(absl::StrCat(R"("system": [{"type": "text", "text": ")", line,
                               R"("}, {"type": "text", "text": "You are an agent."}])"))
        .prompts[0]
        .DebugString();
  };
  const std::string first = prompt("x-anthropic-billing-header: cc_version=2.1; cch=36ee5;");
  EXPECT_EQ(prompt("x-anthropic-billing-header: cc_version=2.1; cch=0aaa9;"), first);
  EXPECT_THAT(first, Not(HasSubstr("billing")));
  EXPECT_THAT(first, HasSubstr("You are an agent."));
  const std::string rest = R"("system": "x-anthropic-billing-header: cch=1;\nBe brief.")";
  EXPECT_THAT(Texts(Parsed(rest)), ElementsAre("system|Be brief.*", "user|q"));
  const std::string user = R"({"role": "user", "content": "x-anthropic-billing-header: a"})";
  EXPECT_THAT(Texts(Parsed("", user)), ElementsAre("user|x-anthropic-billing-header: a"));
}

TEST(MessagesRequest, EveryCacheControlIsBreakpoint) {
  const std::string control = R"("cache_control": {"type": "ephemeral", "ttl": "1h"})";
  const OpenAiRequest plain = Parsed(absl::StrCat(kTools, R"(, "system": "s")"),
                                     kCalls + std::string(R"(, {"role": "user", "content": "r"})"));
  EXPECT_EQ(plain.common.ttl_s(), 0u);
  EXPECT_THAT(Texts(plain)[0], testing::EndsWith("{\"name\": \"clock\"}*"));
  EXPECT_EQ(Texts(plain)[1], "system|s*");
  const OpenAiRequest tools = Parsed(
      absl::StrCat(R"("tools": [{"name": "a", )", control, R"(}, {"name": "b"}], "system": "s")"));
  EXPECT_THAT(Texts(tools)[0], testing::EndsWith("{\"name\": \"a\"}*|\n{\"name\": \"b\"}*"));
  EXPECT_EQ(Texts(tools)[1], "system|s");
  EXPECT_EQ(tools.common.ttl_s(), 3600u);
  const OpenAiRequest system =
      Parsed(absl::StrCat(R"("system": [{"type": "text", "text": "a", )", control,
                          R"(}, {"type": "text", "text": "b"}])"));
  EXPECT_THAT(Texts(system), ElementsAre("system|a*|b", "user|q"));
  const OpenAiRequest turns = Parsed(
      "",
      absl::StrCat(
          R"({"role": "assistant", "content": [{"type": "text", "text": "t"}, {"type": "tool_use",
              "id": "t1", "name": "f", )",
          control, R"(}, {"type": "tool_use", "id": "t2", "name": "f"}]},
              {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", )",
          control, R"(, "content": "r"}, {"type": "text", "text": "a", "cache_control": null},
              {"type": "text", "text": "b", )",
          control, "}]}"));
  EXPECT_THAT(Texts(turns), ElementsAre("assistant|t\n[{\"name\": \"f\", \"parameters\": {}}, "
                                        "{\"name\": \"f\", \"parameters\": {}}]*",
                                        "user|f:\n```tool_output\nr\n```*", "user|a|b*"));
  EXPECT_THAT(Texts(Parsed(control + R"(, "system": "s")")), ElementsAre("system|s*", "user|q*"));
}

TEST(MessagesRequest, BlocksBecomeMessages) {
  EXPECT_THAT(Texts(Parsed("", R"({"role": "user", "content": [{"type": "text", "text": "a"}]},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}]},
      {"role": "user", "content": []})")),
              ElementsAre("user|a", "assistant", "user"));
  const std::string results = R"(, {"role": "user", "content": [{"type": "text", "text": "first"},
      {"type": "tool_result", "tool_use_id": "t2"}, {"type": "tool_result", "tool_use_id": "t1",
      "is_error": true, "content": "no such city"}, {"type": "text", "text": "last"}]})";
  EXPECT_THAT(Texts(Parsed("", kCalls + results)),
              ElementsAre("user|q", testing::_, "user|first",
                          "user|weather failed:\n```tool_output\nno such city\n```",
                          "user|clock:\n```tool_output\n\n```", "user|last"));
}

TEST(MessagesRequest, DeferredToolIsListedByReference) {
  const std::string tools = R"("tools": [{"name": "search"}, {"name": "late", "defer_loading": true,
      "description": "d", "input_schema": {"type": "object"}}])";
  const OpenAiRequest hidden = Parsed(tools);
  EXPECT_THAT(Texts(hidden)[0], Not(HasSubstr("late")));
  EXPECT_THAT(hidden.answer.calls.names, ElementsAre("search"));
  EXPECT_THAT(ErrorOf(tools + R"(, "tool_choice": {"type": "tool", "name": "late"})"),
              StartsWith("tool_choice.name: must be a tool without defer_loading, or a tool that a "
                         "tool_reference names; got \"late\""));
  EXPECT_EQ(ErrorOf(R"("tools": [{"name": "late", "defer_loading": true}],
                       "tool_choice": {"type": "any"})"),
            "tool_choice: needs a tool without defer_loading, or a tool_reference; got none");
  const std::string messages = R"({"role": "assistant", "content": [{"type": "tool_use", "id": "1",
      "name": "search", "input": {}}]}, {"role": "user", "content": [{"type": "tool_result",
      "tool_use_id": "1", "content": [{"type": "tool_reference", "tool_name": ")";
  const OpenAiRequest shown =
      Parsed(tools, messages + R"(late"}, {"type": "tool_reference", "tool_name": "search"}]}]})");
  EXPECT_EQ(Texts(shown)[0], Texts(hidden)[0]) << "the earlier prompt stays a prefix";
  EXPECT_EQ(Texts(shown)[2],
            "user|search:\n```tool_output\n{\"name\": \"late\", \"description\": "
            "\"d\", \"parameters\": {\"type\": \"object\"}}\nsearch\n```");
  EXPECT_THAT(shown.answer.calls.names, ElementsAre("search", "late"));
  EXPECT_EQ(ErrorOf(tools, messages + R"(nobody"}]}]})"),
            "messages[1].content[0].content[0].tool_name: must be the name of a tool in tools; got "
            "\"nobody\"");
}

TEST(MessagesRequest, DeferredToolsDoNotCount) {
  const auto tools = [](int listed, int deferred) {
    std::string text = R"("tools": [)";
    for (int i = 0; i < listed + deferred; ++i) {
      absl::StrAppend(&text, i == 0 ? "" : ",", R"({"name": "t)", i, R"(", "defer_loading": )",
                      i < listed ? "false}" : "true}");
    }
    return text + "]";
  };
  const auto referring = [](int tool) {
    return absl::StrCat(R"({"role": "assistant", "content": [{"type": "tool_use", "id": "1",
        "name": "t0"}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1",
        "content": [{"type": "tool_reference", "tool_name": "t)",
                        tool, R"("}]}]})");
  };
  EXPECT_EQ(ErrorOf(tools(128, 500)), "");
  EXPECT_EQ(ErrorOf(tools(127, 1), referring(127)), "");
  EXPECT_EQ(ErrorOf(tools(129, 0)),
            "tools: must have at most 128 tools without defer_loading; got 129");
  EXPECT_EQ(ErrorOf(tools(128, 1), referring(128)),
            "messages[1].content[0].content[0]: must not name another tool with defer_loading: the "
            "prompt describes 128 tools, which is the limit");
  EXPECT_EQ(ErrorOf(tools(0, 10001)), "tools: must have at most 10000 tools; got 10001");
}

TEST(MessagesRequest, ChoiceSetsCallableTools) {
  const auto choice = [](const std::string& fields) {
    return Parsed(absl::StrCat(kTools, ", \"tool_choice\": {", fields, "}"));
  };
  const std::string prompt = Parsed(kTools).prompts[0].DebugString();
  for (const OpenAiRequest& open : {Parsed(kTools), choice(R"("type": "auto")")}) {
    EXPECT_THAT(open.answer.calls.names, ElementsAre("weather", "clock"));
    EXPECT_THAT(open.common.grammar().triggers(), ElementsAre("{\"name\":", "[{\"name\":"));
    EXPECT_TRUE(open.answer.calls.parallel);
  }
  const OpenAiRequest any = choice(R"("type": "any")");
  EXPECT_TRUE(any.answer.calls.parallel);
  EXPECT_EQ(any.common.grammar().triggers_size(), 0);
  const OpenAiRequest one = choice(R"("type": "any", "disable_parallel_tool_use": true)");
  EXPECT_FALSE(one.answer.calls.parallel);
  const OpenAiRequest named = choice(R"("type": "tool", "name": "clock")");
  EXPECT_THAT(named.answer.calls.names, ElementsAre("clock"));
  EXPECT_FALSE(named.answer.calls.parallel);
  const OpenAiRequest none = choice(R"("type": "none")");
  EXPECT_FALSE(none.common.has_grammar());
  for (const OpenAiRequest* request : {&any, &one, &named, &none}) {
    EXPECT_EQ(request->prompts[0].DebugString(), prompt);
  }
}

TEST(MessagesRequest, OutputFormatSetsGrammar) {
  const std::string format = R"({"type": "json_schema", "schema": {"type": "object", "properties":
      {"a": {"type": "integer"}}}})";
  const std::string want = R"({"type": "object", "properties": {"a": {"type": "integer"}}, )"
                           R"("additionalProperties": false})";
  for (const std::string& fields :
       {absl::StrCat(R"("output_config": {"effort": "high", "format": )", format, "}"),
        absl::StrCat("\"output_format\": ", format)}) {
    EXPECT_EQ(Parsed(fields).common.grammar().json_schema(), want);
    EXPECT_FALSE(Parsed(fields).common.grammar().lenient());
  }
  EXPECT_FALSE(Parsed(R"("output_config": {"effort": "high"})").common.has_grammar());
  EXPECT_FALSE(Parsed(R"("output_config": {"format": null})").common.has_grammar());
}

TEST(MessagesRequest, WrongSchemaErrorNamesBodyPath) {
  const OpenAiRequest request = Parsed(
      R"("tools": [{"name": "late", "defer_loading": true}, {"name": "f", "strict": true,
         "input_schema": {"type": "object", "properties": {"x": {"not": {}}}}}])");
  EXPECT_EQ(WithBodyPath("grammar.json_schema: #/$defs/f/properties/x/not: is wrong",
                         request.answer.paths),
            "tools[1].input_schema.properties.x.not: is wrong");
}

TEST(MessagesRequest, LastAssistantMessageIsRefused) {
  const std::string messages = absl::StrCat(kUser, R"(, {"role": "assistant", "content": "It"})");
  EXPECT_THAT(ErrorOf("", messages),
              StartsWith("messages[1]: must not be the assistant's as the last message"));
  const auto count = ParseText(BodyOf("", messages), /*is_count=*/true);
  ASSERT_TRUE(count.ok()) << count.status();
  EXPECT_TRUE(count->prompts[0].chat().omit_generation_prompt());
  EXPECT_FALSE(
      ParseText(BodyOf(""), /*is_count=*/true)->prompts[0].chat().omit_generation_prompt());
}

TEST(MessagesRequest, UnsupportedFeatureIsRefusedByName) {
  const auto block = [](const std::string& fields) {
    return absl::StrCat(R"({"role": "user", "content": [{)", fields, "}]}");
  };
  const std::pair<absl::Status, const char*> wrong[] = {
      {ParseText(BodyOf(R"("thread": {"type": "create"})")).status(), "thread: is not supported"},
      {ParseText(BodyOf(R"("mcp_servers": [{"name": "a"}])")).status(),
       "mcp_servers: is not supported"},
      {ParseText(BodyOf(R"("container": "c")")).status(), "container: is not supported"},
      {ParseText(BodyOf(R"("compaction": {"type": "summarize"})")).status(),
       "compaction: is not supported"},
      {ParseText(BodyOf(R"("tools": [{"type": "web_search_20250305", "name": "web_search"}])"))
           .status(),
       "tools[0].type: must be \"custom\", the only supported type of tool; got \"web_search_"},
      {ParseText(
           BodyOf(R"("tools": [{"name": "f", "allowed_callers": ["code_execution_20250825"]}])"))
           .status(),
       "tools[0].allowed_callers: is not supported"},
      {ParseText(BodyOf("", block(R"("type": "image", "source": {})"))).status(),
       "messages[0].content[0]: must be a block of type text or tool_result; got type \"image\""},
      {ParseText(BodyOf("", block(R"("type": "document", "source": {})"))).status(),
       "messages[0].content[0]: must be a block of type text or tool_result; got type "
       "\"document\""},
      {ParseText(BodyOf("", R"({"role": "assistant", "content": [{"type": "server_tool_use"}]})"))
           .status(),
       "messages[0].content[0]: must be a block of type text, tool_use, thinking or "
       "redacted_thinking; got type \"server_tool_use\""}};
  for (const auto& [status, why] : wrong) {
    EXPECT_THAT(std::string(status.message()), StartsWith(why));
    EXPECT_EQ(ReasonOf(status), kUnsupportedParameter) << why;
  }
  EXPECT_EQ(ErrorOf(R"("thread": null, "mcp_servers": [], "tools": [{"name": "f",
                       "allowed_callers": ["direct"]}])"),
            "");
}

TEST(MessagesRequest, ErrorNamesWrongField) {
  const std::pair<std::string, const char*> wrong[] = {
      {ErrorOf(R"("max_tokens": -1)"), "max_tokens: must be a whole number"},
      {ErrorOf(R"("stream": 1)"), "stream: must be true or false"},
      {ErrorOf(R"("temperature": 3)"), "temperature: must be a number"},
      {ErrorOf(R"("stop_sequences": "x")"), "stop_sequences: must be a list of strings"},
      {ErrorOf(R"("stop_sequences": [1])"), "stop_sequences[0]: must be a string"},
      {ErrorOf(R"("system": 1)"), "system: must be a string or a list of blocks; got 1"},
      {ErrorOf(R"("system": [1])"), "system[0]: must be an object; got 1"},
      {ErrorOf(R"("system": [{"type": "text"}])"), "system[0]: must have a text; got none"},
      {ErrorOf(R"("system": [{"type": "tool_result"}])"),
       "system[0]: must be a block of type text; got type \"tool_result\""},
      {ErrorOf("", ""), "messages: must be a list of messages; got []"},
      {ErrorOf("", "1"), "messages[0]: must be an object; got 1"},
      {ErrorOf("", "{}"), "messages[0]: must have a role: user, assistant or system"},
      {ErrorOf("", R"({"role": "tool"})"), "messages[0].role: must be user, assistant or system"},
      {ErrorOf("", R"({"role": "user"})"), "messages[0]: must have a content; got none"},
      {ErrorOf("", R"({"role": "user", "content": 1})"),
       "messages[0].content: must be a string or a list of blocks; got 1"},
      {ErrorOf("", R"({"role": "user", "content": [{"text": "a"}]})"),
       "messages[0].content[0]: must be a block of type text or tool_result; got type nothing"},
      {ErrorOf("", R"({"role": "user", "content": [{"type": "text", "text": 1}]})"),
       "messages[0].content[0].text: must be a string; got 1"},
      {ErrorOf("", R"({"role": "user", "content": [{"type": "text", "text": "a",
                   "cache_control": {"type": "forever"}}]})"),
       "messages[0].content[0].cache_control.type: must be \"ephemeral\"; got \"forever\""},
      {ErrorOf("", R"({"role": "user", "content": [{"type": "text", "text": "a",
                   "cache_control": {"type": "ephemeral", "ttl": "soon"}}]})"),
       "messages[0].content[0].cache_control.ttl: must be \"5m\""}};
  for (const auto& [error, why] : wrong) EXPECT_THAT(error, StartsWith(why));
}

TEST(MessagesRequest, ErrorNamesWrongToolField) {
  const auto answer = [](const std::string& block) {
    return absl::StrCat(R"({"role": "assistant", "content": [{"type": "tool_use", )", block,
                        "}]}, ", kUser);
  };
  const auto result = [](const std::string& block) {
    return absl::StrCat(kCalls, R"(, {"role": "user", "content": [{"type": "tool_result", )", block,
                        "}]}");
  };
  const std::pair<std::string, const char*> wrong[] = {
      {ErrorOf("", answer(R"("name": "f")")), "messages[0].content[0]: must have an id; got none"},
      {ErrorOf("", answer(R"("id": "1")")), "messages[0].content[0]: must have a name; got none"},
      {ErrorOf("", answer(R"("id": 1, "name": "f")")),
       "messages[0].content[0].id: must be a string; got 1"},
      {ErrorOf("", answer(R"("id": "1", "name": "f\n")")),
       "messages[0].content[0].name: must be 1 to 128"},
      {ErrorOf("", answer(R"("id": "1", "name": "f", "input": "{}")")),
       "messages[0].content[0].input: must be an object; got \"{}\""},
      {ErrorOf("", result(R"("content": "r")")),
       "messages[2].content[0]: must have a tool_use_id; got none"},
      {ErrorOf("", result(R"("tool_use_id": "t9")")),
       "messages[2].content[0].tool_use_id: must be the id of a call in an earlier"},
      {ErrorOf("", result(R"("tool_use_id": "t1", "content": 1)")),
       "messages[2].content[0].content: must be a string or a list of blocks; got 1"},
      {ErrorOf("", result(R"("tool_use_id": "t1", "content": [{"type": "image"}])")),
       "messages[2].content[0].content[0]: must be a block of type text or tool_reference"},
      {ErrorOf("", result(R"("tool_use_id": "t1", "is_error": 1)")),
       "messages[2].content[0].is_error: must be true or false; got 1"},
      {ErrorOf(R"("tools": 1)"), "tools: must be a list of tools; got 1"},
      {ErrorOf(R"("tools": [{"description": "d"}])"), "tools[0]: must have a name; got none"},
      {ErrorOf(R"("tools": [{"name": "f", "defer_loading": 1}])"),
       "tools[0].defer_loading: must be true or false; got 1"},
      {ErrorOf(R"("tools": [{"name": "f"}, {"name": "f", "defer_loading": true}])"),
       "tools[1].name: must be a name that no other tool has; got \"f\""},
      {ErrorOf(R"("tools": [{"name": "f", "input_schema": []}])"),
       "tools[0].input_schema: must be an object; got []"},
      {ErrorOf(R"("tool_choice": "auto")"), "tool_choice: must be an object; got \"auto\""},
      {ErrorOf(R"("tool_choice": {})"), "tool_choice: must have a type: auto, any, tool or none"},
      {ErrorOf(R"("tool_choice": {"type": "required"})"), "tool_choice.type: must be auto, any"},
      {ErrorOf(R"("tool_choice": {"type": "any"})"), "tool_choice: needs tools; got none"},
      {ErrorOf(absl::StrCat(kTools, R"(, "tool_choice": {"type": "tool"})")),
       "tool_choice: must have a name; got none"},
      {ErrorOf(R"("tool_choice": {"type": "auto", "disable_parallel_tool_use": 1})"),
       "tool_choice.disable_parallel_tool_use: must be true or false; got 1"},
      {ErrorOf(R"("output_config": 1)"), "output_config: must be an object; got 1"},
      {ErrorOf(R"("output_config": {"format": {"type": "json_object"}})"),
       "output_config.format.type: must be \"json_schema\"; got \"json_object\""},
      {ErrorOf(R"("output_config": {"format": {"type": "json_schema"}})"),
       "output_config.format: must have a schema; got none"},
      {ErrorOf(R"("output_format": {"type": "json_schema", "schema": 1})"),
       "output_format.schema: must be an object; got 1"},
      {ErrorOf(R"("output_format": {"type": "json_schema", "schema": {}}, "output_config":
                  {"format": {"type": "json_schema", "schema": {}}})"),
       "output_config.format: must be absent together with output_format"}};
  for (const auto& [error, why] : wrong) EXPECT_THAT(error, StartsWith(why));
}

// {place, name, value that asks for something, required fields of the same object}.
struct KnownField {
  FieldPlace place;
  const char *name, *asks, *around;
};
// All fields of anthropic 2.14.0, module types (and types.beta).
const KnownField kKnown[] = {
    {kInMessages, "max_tokens", "7", ""},
    {kInMessages, "model", "\"m\"", ""},
    {kInMessages, "billing_policy", R"({"type": "billing_policy"})", ""},
    {kInMessages, "cache_control", R"({"type": "ephemeral"})", ""},
    {kInMessages, "compaction", R"({"type": "summarize"})", ""},
    {kInMessages, "container", "\"c\"", ""},
    {kInMessages, "context_management", R"({"edits": [{"type": "clear_thinking_20251015"}]})", ""},
    {kInMessages, "diagnostics", R"({"previous_message_id": null})", ""},
    {kInMessages, "fallback_credit_token", "\"t\"", ""},
    {kInMessages, "fallbacks", R"([{"model": "n"}])", ""},
    {kInMessages, "hearth_explain", "true", ""},
    {kInMessages, "inference_geo", "\"eu\"", ""},
    {kInMessages, "mcp_servers", R"([{"name": "a"}])", ""},
    {kInMessages, "metadata", R"({"user_id": "u"})", ""},
    {kInMessages, "output_config", R"({"format": {"type": "json_schema", "schema": {}}})", ""},
    {kInMessages, "output_format", R"({"type": "json_schema", "schema": {}})", ""},
    {kInMessages, "seed", "7", ""},
    {kInMessages, "service_tier", "\"auto\"", ""},
    {kInMessages, "speed", "\"fast\"", ""},
    {kInMessages, "stop_sequences", R"(["x"])", ""},
    {kInMessages, "stream", "true", ""},
    {kInMessages, "system", "\"s\"", ""},
    {kInMessages, "temperature", "0.5", ""},
    {kInMessages, "thinking", R"({"type": "enabled", "budget_tokens": 1024})", ""},
    {kInMessages, "thread", R"({"type": "create"})", ""},
    {kInMessages, "tool_choice", R"({"type": "any"})", R"("tools": [{"name": "f"}])"},
    {kInMessages, "tools", R"([{"name": "f"}])", ""},
    {kInMessages, "top_k", "7", ""},
    {kInMessages, "top_p", "0.5", ""},
    {kInMessages, "user_profile_id", "\"u\"", ""},
    {kInMessages, "workspace_id", "\"w\"", ""},
    {kInToolChoice, "disable_parallel_tool_use", "true", R"("type": "any")"},
    {kInOutputConfig, "effort", "\"high\"", ""},
    {kInOutputConfig, "format", R"({"type": "json_schema", "schema": {}})", ""},
    {kInOutputConfig, "task_budget", R"({"type": "tokens", "total": 9})", ""},
    {kInCustomTool, "allowed_callers", R"(["code_execution_20260120"])", ""},
    {kInCustomTool, "cache_control", R"({"type": "ephemeral", "ttl": "1h"})", ""},
    {kInCustomTool, "defer_loading", "true", ""},
    {kInCustomTool, "description", "\"d\"", ""},
    {kInCustomTool, "eager_input_streaming", "true", ""},
    {kInCustomTool, "input_examples", "[{}]", ""},
    {kInCustomTool, "input_schema", R"({"type": "object"})", ""},
    {kInCustomTool, "strict", "true", ""},
    {kInBlock, "cache_control", R"({"type": "ephemeral"})", R"("type": "text", "text": "t")"},
    {kInBlock, "citations", "[{}]", R"("type": "text", "text": "t")"},
    {kInBlock, "toolset_name", "\"t\"", R"("type": "text", "text": "t")"},
    {kInBlock, "caller", R"({"type": "direct"})", R"("type": "text", "text": "t")"},
    {kInBlock, "signature", "\"s\"", R"("type": "text", "text": "t")"},
    {kInBlock, "thinking", "\"s\"", R"("type": "text", "text": "t")"},
    {kInBlock, "data", "\"s\"", R"("type": "text", "text": "t")"},
    {kInBlock, "is_error", "true", R"("type": "tool_result", "tool_use_id": "t1")"},
    {kInBlock, "content", "\"r\"", R"("type": "tool_result", "tool_use_id": "t1")"},
};

// Returns a body with the field; a null `value` is sent as null.
std::string BodyWith(const KnownField& field, const std::string& value) {
  const std::string object = absl::StrCat("{\"", field.name, "\": ", value,
                                          *field.around == '\0' ? "" : ", ", field.around, "}");
  switch (field.place) {
    case kInOutputConfig:
      return BodyOf("\"output_config\": " + object);
    case kInToolChoice:
      return BodyOf(R"("tools": [{"name": "t"}], "tool_choice": )" + object);
    case kInCustomTool:
      return BodyOf(absl::StrCat(R"("tools": [{"name": "first"}, {"name": "t", )", object.substr(1),
                                 R"(, {"name": "last"}])"));
    case kInBlock:
      return BodyOf("", absl::StrCat(kCalls, R"(, {"role": "user", "content": [)", object, "]}"));
    default:
      return BodyOf(object.substr(1, object.size() - 2));
  }
}

std::string StateOf(const std::string& body) {
  const absl::StatusOr<OpenAiRequest> request = ParseText(body);
  if (!request.ok()) return absl::StrCat("error: ", request.status().message());
  return absl::StrCat(request->common.DebugString(), request->prompts[0].DebugString(), " model ",
                      request->model, " stream ", request->stream, " prewarm ", request->prewarm,
                      " explain ", request->explain, " strict ", request->answer.strict.has_value(),
                      " unknown ", request->unknown.Text());
}

TEST(MessagesFields, ParsedFieldsFollowTable) {
  for (const KnownField& field : kKnown) {
    SCOPED_TRACE(absl::StrCat(field.name, " ", field.asks));
    const OpenAiField* const row = FindOpenAiField(field.name, field.place);
    ASSERT_NE(row, nullptr);
    const std::string without = StateOf(BodyWith(field, "null"));
    const std::string asks = StateOf(BodyWith(field, field.asks));
    EXPECT_THAT(without, Not(StartsWith("error")));
    EXPECT_THAT(without, testing::EndsWith(" unknown "));
    if (row->use == FieldUse::kServed) {
      EXPECT_THAT(asks, Not(StartsWith("error")));
      EXPECT_NE(asks, without);
    } else if (row->use == FieldUse::kIgnored) {
      EXPECT_EQ(asks, without);
    } else {
      EXPECT_THAT(asks, StartsWith("error: "));
      EXPECT_THAT(asks, HasSubstr(absl::StrCat(field.name, ": is not supported by this server")));
    }
  }
}

TEST(MessagesFields, EveryRowIsKnownField) {
  std::set<std::string> known = {"messages", "content",   "role",        "id",   "input", "name",
                                 "text",     "tool_name", "tool_use_id", "type", "schema"};
  for (const KnownField& field : kKnown) known.insert(field.name);
  for (const OpenAiField& row : OpenAiFieldTable()) {
    constexpr uint64_t kOfMessages = kInMessages | kInTurn | kInBlock | kInCustomTool |
                                     kInOutputConfig | kInOutputFormat | kInToolChoice;
    if ((row.places & kOfMessages) != 0) {
      EXPECT_EQ(known.count(std::string(row.name)), 1u) << row.name;
    }
  }
}

// Recorded request bodies of real clients: each must be parsed without unknown fields, or refused
// if the case has the status 400.
TEST(MessagesRequest, RecordedBodiesAreParsed) {
  size_t parsed = 0, refused = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(absl::StrCat(HEARTH_TEST_DATA_DIR, "/clients"))) {
    std::ifstream in(file.path());
    const MessagesJson cases = MessagesJson::parse(in)["cases"];
    for (const MessagesJson& one : cases) {
      const std::string path = one.value("path", "");
      if (!absl::StartsWith(path, "/v1/messages")) continue;
      const bool is_refused = one.value("status", 200) == 400;
      for (const MessagesJson& recorded : one["bodies"]) {
        const auto request = ParseText(recorded.dump(), absl::EndsWith(path, "count_tokens"));
        EXPECT_EQ(request.ok(), !is_refused) << file.path() << one["case"] << request.status();
        (is_refused ? refused : parsed) += 1;
        if (request.ok()) {
          EXPECT_EQ(request->unknown.Text(), "") << file.path() << one["case"];
        }
      }
    }
  }
  EXPECT_EQ(parsed, 19u);
  EXPECT_EQ(refused, 4u);
}

// Bodies of 3 MiB that are expensive to read.
TEST(MessagesRequest, HostileBodyParsedInHalfSecond) {
  constexpr double kMostSeconds = kIsSanitized ? 10 : 0.5;
  const auto seconds = [] {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  };
  const std::string user = R"({"messages":[{"role":"user","content":[)";
  const std::string call = R"({"type":"tool_use","id":"a","name":"f")";
  const std::string called = R"({"messages":[{"role":"assistant","content":[)" + call +
                             R"(}]},{"role":"user","content":[)";
  const std::string result = R"({"type":"tool_result","tool_use_id":"a")";
  std::string nested = "1";
  for (int i = 0; i < 25; ++i) nested = "{\"a\":[" + nested + "]}";
  const std::pair<const char*, std::string> bodies[] = {
      {"messages", Repeated(R"({"messages":[)", R"({"role":"user","content":"a"})", "]}")},
      {"blocks", Repeated(user, R"({"type":"text","text":"a"})", "]}]}")},
      {"system blocks",
       Repeated(R"({"messages":[],"system":[)", R"({"type":"text","text":"a"})", "]}")},
      {"calls", Repeated(R"({"messages":[{"role":"assistant","content":[)", call + "}", "]}]}")},
      {"inputs", Repeated(R"({"messages":[{"role":"assistant","content":[)",
                          call + ",\"input\":" + ObjectOfKeys(1024, "", "0") + "}", "]}]}")},
      {"nested inputs", Repeated(R"({"messages":[{"role":"assistant","content":[)",
                                 call + ",\"input\":{\"a\":" + nested + "}}", "]}]}")},
      {"thinking", Repeated(R"({"messages":[{"role":"assistant","content":[)",
                            R"({"type":"thinking"})", "]}]}")},
      {"results", Repeated(called, result + "}", "]}]}")},
      {"result parts",
       Repeated(called + result + ",\"content\":[", R"({"type":"text","text":"a"})", "]}]}]}")},
      {"one result", called + result + ",\"content\":\"" + RepeatedText("`") + "\"}]}]}"},
      {"references", Repeated(R"({"tools":[{"name":"late","defer_loading":true}],)" +
                                  called.substr(1) + result + ",\"content\":[",
                              R"({"type":"tool_reference","tool_name":"late"})", "]}]}]}")},
      {"tools", Repeated(R"({"messages":[],"tools":[)", R"({"name":"f"})", "]}")},
      {"one tool", R"({"messages":[)" + std::string(kUser) +
                       R"(],"tools":[{"name":"f","description":")" + RepeatedText("\\u0001") +
                       "\"}]}"},
      {"stops", Repeated(R"({"messages":[],"stop_sequences":[)", "\"a\"", "]}")}};
  for (const auto& [name, body] : bodies) {
    SCOPED_TRACE(name);
    EXPECT_LE(body.size(), kHostileBytes);
    EXPECT_GT(body.size(), kHostileBytes / 2);
    const double begin = seconds();
    const absl::StatusOr<OpenAiRequest> request = ParseText(body);
    const double took = seconds() - begin;
    EXPECT_LE(took, kMostSeconds);
    if (request.ok()) {
      EXPECT_LE(request->bytes(), 16 * body.size());
    } else {
      EXPECT_LE(request.status().message().size(), 500u) << request.status();
    }
    RecordProperty(absl::StrCat("ms of ", name), static_cast<int>(took * 1000));
  }
}

}  // namespace
}  // namespace hearth
