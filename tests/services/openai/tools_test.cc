// Tests requests with tools: parsing, the text of the prompt, and the allowed answers.
#include "services/openai/tools.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "proto/error_reason.h"
#include "services/openai/openai_request.h"
#include "services/openai/responses_request.h"

namespace hearth {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kWeather[] = R"({"type": "function", "function": {"name": "get_weather",
    "description": "Weather of a city", "parameters": {"type": "object",
    "properties": {"unit": {"enum": ["c","f"]}, "city": {"type": "string"}},
    "required": ["city"]}}})";
constexpr char kClock[] = R"({"type": "function", "function": {"name": "clock", "strict": true}})";

absl::StatusOr<OpenAiRequest> ParseToolChat(const std::string& fields,
                                            const std::string& messages = "") {
  const std::string user = R"({"role": "user", "content": "a"})";
  const auto body = ParseBody(absl::StrCat("{\"messages\": [", messages.empty() ? user : messages,
                                           "]", fields.empty() ? "" : ", ", fields, "}"));
  EXPECT_TRUE(body.ok()) << body.status();
  return ParseChat(body->root());
}

OpenAiRequest ToolChat(const std::string& fields, const std::string& messages = "") {
  absl::StatusOr<OpenAiRequest> request = ParseToolChat(fields, messages);
  EXPECT_TRUE(request.ok()) << request.status();
  return *std::move(request);
}

std::string ToolError(const std::string& fields, const std::string& messages = "") {
  return std::string(ParseToolChat(fields, messages).status().message());
}

std::string Listed(const std::string& more = "") {
  return absl::StrCat("\"tools\": [", kWeather, ", ", kClock, "]", more.empty() ? "" : ", ", more);
}

// Returns the names of the functions that the answer may call.
std::vector<std::string> Callable(const OpenAiRequest& request) {
  std::vector<std::string> names;
  const auto schema = json::parse(request.common.grammar().json_schema(), nullptr, false);
  if (!schema.contains("$defs")) return names;
  for (const auto& call : schema["$defs"]["$call"]["anyOf"]) {
    names.push_back(call["properties"]["name"]["const"]);
  }
  EXPECT_EQ(names, request.answer.calls.names);
  return names;
}

TEST(ChatTools, ToolsAreFirstSystemMessage) {
  const OpenAiRequest request = ToolChat(
      Listed(), R"({"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"})");
  const v1::Chat& chat = request.prompts[0].chat();
  ASSERT_EQ(chat.messages_size(), 3);
  EXPECT_EQ(chat.messages(0).role(), "system");
  const v1::ContentPart& tools = chat.messages(0).parts(0);
  EXPECT_TRUE(tools.cache_breakpoint());
  EXPECT_THAT(tools.text(), StartsWith("You have access to functions."));
  EXPECT_THAT(tools.text(),
              EndsWith("if you call a function\n"
                       R"({"name": "get_weather", "description": "Weather of a city", )"
                       R"("parameters": {"type": "object", "properties": {"unit": )"
                       R"({"enum": ["c", "f"]}, "city": {"type": "string"}}, )"
                       R"("required": ["city"]}})"
                       "\n{\"name\": \"clock\"}"));
  EXPECT_EQ(chat.messages(1).parts(0).text(), "Be brief.");
  EXPECT_TRUE(chat.messages(1).parts(0).cache_breakpoint());
}

TEST(ChatTools, EveryChoiceHasSamePrompt) {
  const std::string prompt = ToolChat(Listed()).prompts[0].DebugString();
  for (const char* more :
       {R"("tool_choice": "none")", R"("tool_choice": "required")",
        R"("tool_choice": {"type": "function", "function": {"name": "clock"}})",
        R"("parallel_tool_calls": false)", R"("response_format": {"type": "json_object"})"}) {
    EXPECT_EQ(ToolChat(Listed(more)).prompts[0].DebugString(), prompt) << more;
  }
}

TEST(ChatTools, ChoiceSetsCallableToolsAndTriggers) {
  const OpenAiRequest open = ToolChat(Listed());
  EXPECT_THAT(Callable(open), ElementsAre("get_weather", "clock"));
  EXPECT_THAT(open.common.grammar().triggers(), ElementsAre("{\"name\":", "[{\"name\":"));
  EXPECT_TRUE(open.common.grammar().lenient());
  const OpenAiRequest one = ToolChat(Listed("\"parallel_tool_calls\": false"));
  EXPECT_THAT(one.common.grammar().triggers(), ElementsAre("{\"name\":"));
  EXPECT_THAT(one.common.grammar().json_schema(), testing::Not(HasSubstr("array")));
  const OpenAiRequest none = ToolChat(Listed(R"("tool_choice": "none")"));
  EXPECT_FALSE(none.common.has_grammar());
  EXPECT_TRUE(none.answer.calls.names.empty());
  const OpenAiRequest required = ToolChat(Listed(R"("tool_choice": "required")"));
  EXPECT_THAT(Callable(required), ElementsAre("get_weather", "clock"));
  EXPECT_EQ(required.common.grammar().triggers_size(), 0);
  const OpenAiRequest named =
      ToolChat(Listed(R"("tool_choice": {"type": "function", "function": {"name": "clock"}})"));
  EXPECT_THAT(Callable(named), ElementsAre("clock"));
  EXPECT_EQ(named.common.grammar().triggers_size(), 0);
  EXPECT_FALSE(named.common.grammar().lenient());
  EXPECT_THAT(named.common.grammar().json_schema(), testing::Not(HasSubstr("array")));
  EXPECT_FALSE(named.answer.calls.parallel) << "a named function is called once";
  EXPECT_TRUE(required.answer.calls.parallel);
  for (const char* mode : {"auto", "required"}) {
    const OpenAiRequest allowed = ToolChat(Listed(absl::StrCat(
        R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": ")", mode,
        R"(", "tools": [{"type": "function", "function": {"name": "clock"}}]}})")));
    EXPECT_THAT(Callable(allowed), ElementsAre("clock"));
    EXPECT_EQ(allowed.common.grammar().triggers_size() > 0, std::string(mode) == "auto");
  }
}

TEST(ChatTools, ResponseFormatAndToolsAreAlternatives) {
  const std::string form = R"("response_format": {"type": "json_schema", "json_schema": {
      "name": "p", "schema": {"type": "object", "properties": {"name": {"type": "string"}}}}})";
  const OpenAiRequest both = ToolChat(Listed(form));
  EXPECT_THAT(both.common.grammar().json_schema(), HasSubstr("#/$defs/$answer"));
  EXPECT_EQ(both.common.grammar().triggers_size(), 0) << "no free text";
  EXPECT_THAT(Callable(both), ElementsAre("get_weather", "clock"));
  const OpenAiRequest required = ToolChat(Listed(form + R"(, "tool_choice": "required")"));
  EXPECT_THAT(required.common.grammar().json_schema(), testing::Not(HasSubstr("$answer")));
  const OpenAiRequest none = ToolChat(Listed(form + R"(, "tool_choice": "none")"));
  EXPECT_EQ(none.common.grammar().json_schema(), ToolChat(form).common.grammar().json_schema());
  EXPECT_TRUE(none.answer.calls.names.empty());
}

// `strict` has only the form, so its places differ from the places in `grammar`.
TEST(ChatTools, StrictGrammarHasItsOwnPaths) {
  const OpenAiRequest form = ToolChat(
      absl::StrCat("\"tools\": [", kWeather, R"(], "guided_json": {"items": {"not": {}}})"));
  ASSERT_TRUE(form.answer.strict.has_value());
  EXPECT_EQ(form.answer.strict->json_schema(), R"({"items": {"not": {}}})");
  const std::string error = "grammar.json_schema: #/items/not: is wrong";
  EXPECT_EQ(WithBodyPath(error, form.answer.strict_paths), "guided_json.items.not: is wrong");
  const OpenAiRequest tools = ToolChat(Listed());
  EXPECT_EQ(WithBodyPath("grammar.json_schema: #/$defs/clock: is wrong", tools.answer.strict_paths),
            "tools[1].function.parameters: is wrong");
}

TEST(ChatTools, LongTextsAreRefusedWithBodyPath) {
  const std::string half(1100000, 'x');
  const auto tool = [&](const std::string& name) {
    return absl::StrCat(R"({"type": "function", "function": {"name": ")", name,
                        R"(", "description": ")", half, "\"}}");
  };
  EXPECT_THAT(ToolError(absl::StrCat("\"tools\": [", tool("a"), ",", tool("b"), "]")),
              ::testing::MatchesRegex("tools: has 2200[0-9]* bytes; the limit is 2097152"));
  const std::string call =
      absl::StrCat(R"({"role": "assistant", "content": ")", half,
                   R"(", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "\")",
                   half, R"(\""}}]}, {"role": "user", "content": "a"})");
  EXPECT_THAT(ToolError("", call), StartsWith("messages[0]: has 2200"));
  const std::string part = absl::StrCat(R"({"type": "text", "text": ")", half, "\"}");
  EXPECT_THAT(
      ToolError("", absl::StrCat(R"({"role": "assistant", "tool_calls": [{"id": "1", "function": )"
                                 R"({"name": "f"}}]}, {"role": "tool", "tool_call_id": "1", )"
                                 R"("content": [)",
                                 part, ",", part, "]}")),
      StartsWith("messages[1]: has 2200"));
}

TEST(ChatTools, EarlierCallsAreCounted) {
  EXPECT_EQ(ToolChat(Listed()).earlier_calls, 0u);
  const std::string call = R"({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name":
      "f"}}, {"id": "1", "function": {"name": "f"}}]}, {"role": "user", "content": "a"})";
  EXPECT_EQ(ToolChat(Listed(), call).earlier_calls, 2u);
}

TEST(ChatTools, WrongToolsAreRefusedWithPath) {
  const auto tool = [](const std::string& function) {
    return absl::StrCat(R"("tools": [{"type": "function", "function": )", function, "}]");
  };
  std::string many = "\"tools\": [";
  for (int i = 0; i < 129; ++i) {
    absl::StrAppend(&many, i > 0 ? "," : "", R"({"type": "function", "function": {"name": "f)", i,
                    "\"}}");
  }
  const std::pair<std::string, const char*> wrong[] = {
      {R"("tools": 1)", "tools: must be a list of tools; got 1"},
      {R"("tools": ["f"])", "tools[0]: must be an object; got \"f\""},
      {many + "]", "tools: must have at most 128 tools; got 129"},
      {R"("tools": [{"type": "web_search"}])", "tools[0].type: must be \"function\""},
      {R"("tools": [{"type": "function"}])", "tools[0]: must have a function; got none"},
      {tool("{}"), "tools[0].function: must have a name; got none"},
      {tool(R"({"name": "a b"})"), "tools[0].function.name: must be 1 to 128 letters, digits"},
      {tool(R"({"name": ""})"), "tools[0].function.name: must be 1 to 128"},
      {tool(absl::StrCat(R"({"name": ")", std::string(129, 'n'), "\"}")),
       "tools[0].function.name: must be 1 to 128"},
      {tool(R"({"name": "f", "description": 1})"),
       "tools[0].function.description: must be a string; got 1"},
      {tool(R"({"name": "f", "strict": 1})"), "tools[0].function.strict: must be true or false"},
      {tool(R"({"name": "f", "parameters": []})"),
       "tools[0].function.parameters: must be an object; got []"},
      {tool(R"({"name": "f", "parameters": {"type": "array"}})"),
       "tools[0].function.parameters.type: must be \"object\"; got \"array\""},
      {absl::StrCat("\"tools\": [", kClock, ",", kClock, "]"),
       "tools[1].function.name: must be a name that no other tool has; got \"clock\""},
      {tool(absl::StrCat(R"({"name": "f", "parameters": {"enum": [")", std::string(70000, 'e'),
                         "\"]}}")),
       "tools[0].function.parameters: all schemas of a request together must have at most 65536"},
      {R"("functions": [{"name": "f"}])",
       "functions: is not supported by this server; leave it out: deprecated: send tools"},
      {R"("function_call": "f")", "function_call: is not supported by this server"}};
  for (const auto& [fields, why] : wrong) EXPECT_THAT(ToolError(fields), StartsWith(why)) << fields;
}

TEST(ChatTools, WrongChoicesAreRefusedWithPath) {
  const std::pair<std::string, const char*> wrong[] = {
      {R"("tool_choice": "required")", "tool_choice: needs tools; got none"},
      {Listed(R"("tool_choice": "any")"), "tool_choice: must be auto, none, required, "},
      {Listed(R"("tool_choice": 1)"), "tool_choice: must be auto, none, required, "},
      {Listed(R"("tool_choice": {"type": "custom"})"), "tool_choice: must be auto"},
      {Listed(R"("tool_choice": {"type": "function"})"), "tool_choice: must have a function"},
      {Listed(R"("tool_choice": {"type": "function", "function": {"name": "x"}})"),
       "tool_choice.function.name: must be the name of a function in tools; got \"x\""},
      {Listed(R"("tool_choice": {"type": "allowed_tools"})"),
       "tool_choice: must have allowed_tools; got none"},
      {Listed(R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none"}})"),
       "tool_choice.allowed_tools.mode: must be auto or required; got \"none\""},
      {Listed(R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto",
                "tools": []}})"),
       "tool_choice.allowed_tools: must have tools: a list of functions"},
      {Listed(R"("parallel_tool_calls": "no")"), "parallel_tool_calls: must be true or false"}};
  for (const auto& [fields, why] : wrong) EXPECT_THAT(ToolError(fields), StartsWith(why)) << fields;
}

TEST(AnswerForms, NameAndStrictOfResponseFormatAreChecked) {
  const auto error = [](const std::string& fields) {
    return ToolError(absl::StrCat(R"("response_format": {"type": "json_schema", "json_schema": {)",
                                  fields, R"("schema": {"type": "object"}}})"));
  };
  const std::string name(128, 'n');
  for (const std::string& right :
       {std::string(), std::string(R"("name": "final_output-2", "strict": true,)"),
        absl::StrCat(R"("name": ")", name, R"(", "strict": false,)"),
        std::string(R"("name": null, "strict": null,)")}) {
    EXPECT_EQ(error(right), "") << right;
  }
  const std::string at = "response_format.json_schema.";
  for (const std::string& wrong : {std::string("7"), std::string("\"\""), std::string("\"a b\""),
                                   absl::StrCat("\"", name, "n\""), std::string("{}")}) {
    EXPECT_THAT(error(absl::StrCat("\"name\": ", wrong, ",")),
                StartsWith(at + "name: must be 1 to 128 letters, digits, \"_\" and \"-\"; got "));
  }
  for (const char* wrong : {"1", "\"true\"", "[]"}) {
    EXPECT_THAT(error(absl::StrCat("\"strict\": ", wrong, ",")),
                StartsWith(at + "strict: must be true or false; got "));
  }
}

TEST(AnswerForms, EachFieldSetsSameGrammar) {
  const std::string schema = R"({"type": "object", "properties": {"a": {"type": "integer"}}})";
  const std::string want = R"({"type": "object", "properties": {"a": {"type": "integer"}}, )"
                           R"("additionalProperties": false})";
  for (const std::string& field :
       {absl::StrCat(R"("response_format": {"type": "json_schema", "json_schema": {"name": "x", )",
                     R"("strict": true, "schema": )", schema, "}}"),
        absl::StrCat(R"("structured_outputs": {"json": )", schema, "}"),
        absl::StrCat(R"("guided_json": )", schema),
        absl::StrCat(R"("guided_json": )", json(schema).dump())}) {
    const v1::GenerateRequest made = ToolChat(field).common;
    EXPECT_EQ(made.grammar().json_schema(), want) << field;
    EXPECT_FALSE(made.grammar().lenient());
    EXPECT_EQ(made.grammar().triggers_size(), 0);
    const auto body = ParseBody(absl::StrCat(R"({"prompt": "a", )", field, "}"));
    const auto completion = ParseCompletion(body->root());
    ASSERT_TRUE(completion.ok()) << completion.status();
    EXPECT_EQ(completion->common.grammar().json_schema(), want);
  }
  for (const char* field : {R"("response_format": {"type": "json_object"})",
                            R"("structured_outputs": {"json_object": true})"}) {
    EXPECT_EQ(ToolChat(field).common.grammar().json_schema(), R"({"type": "object"})");
  }
  for (const char* field : {R"("response_format": {"type": "text"})", R"("response_format": {})",
                            R"("structured_outputs": {})",
                            R"("structured_outputs": {"regex": null})", R"("guided_json": "")"}) {
    EXPECT_FALSE(ToolChat(field).common.has_grammar()) << field;
  }
}

TEST(AnswerForms, SchemaAsTextIsCountedInMemory) {
  const std::string form = R"("guided_json": "{\"enum\": [1, 2, 3]}"})";
  const auto chat = ParseBody(R"({"messages": [{"role": "user", "content": "a"}], )" + form);
  const auto completion = ParseBody(R"({"prompt": "a", )" + form);
  ASSERT_TRUE(chat.ok() && completion.ok());
  ParseTerms limits;
  uint64_t held = 0;
  limits.hold = [&](uint64_t bytes) {
    held += bytes;
    return true;
  };
  EXPECT_TRUE(ParseChat(chat->root(), limits).ok());
  EXPECT_GT(held, 0u);
  limits.hold = [](uint64_t /*bytes*/) { return false; };
  for (const absl::Status& status :
       {ParseChat(chat->root(), limits).status(),
        ParseCompletion(completion->root(), UINT32_MAX, limits).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), StartsWith("guided_json: "));
  }
}

TEST(AnswerForms, WrongFormsAreRefusedWithPath) {
  const std::pair<const char*, const char*> wrong[] = {
      {R"("response_format": "json")", "response_format: must be an object; got \"json\""},
      {R"("response_format": {"json_schema": {}})", "response_format: must have a type: "},
      {R"("response_format": {"type": "xml"})", "response_format.type: must be \"text\", "},
      {R"("response_format": {"type": "json_schema"})",
       "response_format: must have a json_schema; got none"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "a"}})",
       "response_format.json_schema: must have a schema; got none"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": "a"}})",
       "response_format.json_schema.schema: must be an object; got \"a\""},
      {R"("response_format": {"type": "json_object", "schema": {"type": "object"}})",
       "response_format.schema: is not supported by this server"},
      {R"("structured_outputs": {"regex": "a+"})",
       "structured_outputs.regex: is not supported by this server"},
      {R"("structured_outputs": {"json": {}, "json_object": true})",
       "structured_outputs.json: must be absent if json_object is true"},
      {R"("guided_json": "{")", "guided_json: must be JSON; at byte 1"},
      {R"("guided_json": 7)", "guided_json: must be a JSON schema; got 7"},
      {R"("guided_json": {}, "response_format": {"type": "json_object"})",
       "guided_json: must be absent together with response_format"}};
  for (const auto& [fields, why] : wrong) EXPECT_THAT(ToolError(fields), StartsWith(why)) << fields;
}

const char kCalled[] = R"({"role": "user", "content": "q"}, {"role": "assistant", "content": null,
    "tool_calls": [{"id": "c1", "type": "function",
                    "function": {"name": "get_weather", "arguments": "{\"city\":\"Paris\"}"}},
                   {"id": "c2", "type": "function",
                    "function": {"name": "clock", "arguments": ""}}]})";

std::vector<std::string> Texts(const OpenAiRequest& request) {
  std::vector<std::string> texts;
  for (const v1::ChatMessage& message : request.prompts[0].chat().messages()) {
    std::string text = message.role();
    for (const v1::ContentPart& part : message.parts()) absl::StrAppend(&text, "|", part.text());
    texts.push_back(text);
  }
  return texts;
}

TEST(CallHistory, ResultsFollowOrderOfCalls) {
  const std::vector<std::string> texts = Texts(ToolChat(
      "", absl::StrCat(kCalled, R"(, {"role": "tool", "tool_call_id": "c2", "content": "12:00"},
           {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "18 C, "},
            {"type": "text", "text": "```dry```"}]}, {"role": "user", "content": "And?"})")));
  EXPECT_THAT(texts,
              ElementsAre("user|q",
                          "assistant|[{\"name\": \"get_weather\", \"parameters\": "
                          "{\"city\": \"Paris\"}}, {\"name\": \"clock\", \"parameters\": {}}]",
                          "user|get_weather:\n````tool_output\n18 C, ```dry```\n````",
                          "user|clock:\n```tool_output\n12:00\n```", "user|And?"));
}

TEST(CallHistory, CallsBeginNewLineAfterText) {
  const auto of = [](const std::string& content) {
    return Texts(ToolChat(
        "", absl::StrCat(
                R"({"role": "user", "content": "q"}, {"role": "assistant", "content": )", content,
                R"(, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f",
            "arguments": "{\"a\": 1.50,\"b\":\"\\u00e9\"}"}}]})")))[1];
  };
  const std::string call = "{\"name\": \"f\", \"parameters\": {\"a\": 1.50, \"b\": \"\xC3\xA9\"}}";
  EXPECT_EQ(of("null"), "assistant|" + call);
  EXPECT_EQ(of("\"\""), "assistant|" + call);
  EXPECT_EQ(of("\"Look.\""), "assistant|Look.\n" + call);
  EXPECT_EQ(of("\"Look.\\n\\n\""), "assistant|Look.\n\n" + call);
  EXPECT_EQ(of(R"([{"type": "text", "text": "Look."}])"), "assistant|Look.\n" + call);
}

TEST(CallHistory, ArgumentsOfTruncatedCallStayUnchanged) {
  const std::string messages = R"({"role": "assistant", "tool_calls": [{"id": "1",
      "function": {"name": "f", "arguments": "{\"a\": \"b"}}]}, {"role": "user", "content": "x"})";
  EXPECT_EQ(Texts(ToolChat("", messages))[0],
            "assistant|{\"name\": \"f\", \"parameters\": {\"a\": \"b}");
}

TEST(CallHistory, BreakpointsOfResultsAreKept) {
  const OpenAiRequest request =
      ToolChat("", absl::StrCat(kCalled, R"(, {"role": "tool", "tool_call_id": "c1", "content": "a",
           "cache_control": {"type": "ephemeral", "ttl": "1h"}}, {"role": "tool",
           "tool_call_id": "c2", "content": [{"type": "text", "text": "b",
           "prompt_cache_breakpoint": {}}]})"));
  const v1::Chat& chat = request.prompts[0].chat();
  EXPECT_TRUE(chat.messages(2).parts(0).cache_breakpoint());
  EXPECT_TRUE(chat.messages(3).parts(0).cache_breakpoint());
  EXPECT_EQ(request.common.ttl_s(), 3600u);
}

TEST(CallHistory, WrongCallsAreRefusedWithPath) {
  const auto calls = [](const std::string& list) {
    return absl::StrCat(R"({"role": "assistant", "content": "t", "tool_calls": )", list,
                        R"(}, {"role": "user", "content": "a"})");
  };
  const std::pair<std::string, const char*> wrong[] = {
      {calls("1"), "messages[0].tool_calls: must be a list of calls; got 1"},
      {calls("[1]"), "messages[0].tool_calls[0]: must be an object; got 1"},
      {calls(R"([{"id": "a"}])"), "messages[0].tool_calls[0]: must have a function; got none"},
      {calls(R"([{"id": "a", "type": "custom", "custom": {}}])"),
       "messages[0].tool_calls[0].type: must be \"function\""},
      {calls(R"([{"function": {"name": "f"}}])"),
       "messages[0].tool_calls[0]: must have an id; got none"},
      {calls(R"([{"id": "a", "function": {"name": "f\n"}}])"),
       "messages[0].tool_calls[0].function.name: must be 1 to 128"},
      {calls(R"([{"id": "a", "function": {"name": "f", "arguments": {}}}])"),
       "messages[0].tool_calls[0].function.arguments: must be a string of JSON; got {}"},
      {absl::StrCat(kCalled, R"(, {"role": "tool", "content": "x"})"),
       "messages[2]: must have a tool_call_id; got none"},
      {absl::StrCat(kCalled, R"(, {"role": "tool", "content": "x", "tool_call_id": "c3"})"),
       "messages[2].tool_call_id: must be the id of a call in an earlier assistant message"},
      {absl::StrCat(kCalled, R"(, {"role": "tool", "tool_call_id": "c1"})"),
       "messages[2].content: is missing"},
      {R"({"role": "function", "name": "f", "content": "x"})",
       "messages[0].role: must be system, developer, user, assistant or tool"}};
  for (const auto& [messages, why] : wrong) {
    EXPECT_THAT(ToolError("", messages), StartsWith(why)) << messages;
  }
}

TEST(ChatMessages, FieldsOfOtherRoleAreRefused) {
  const std::string calls =
      R"("tool_calls": [{"id": "a", "type": "function", "function": {"name": "f"}}])";
  for (const char* const role : {"system", "developer", "user", "assistant", "tool"}) {
    const std::string id = role == std::string("tool") ? R"(, "tool_call_id": "c1")" : "";
    const auto message = [&](const std::string& more) {
      return absl::StrCat(kCalled, R"(, {"role": ")", role, R"(", "content": "x")", id, more, "}");
    };
    for (const char* const absent :
         {R"(, "tool_calls": [], "name": "f")", R"(, "tool_calls": null)"}) {
      EXPECT_EQ(Texts(ToolChat("", message(absent))), Texts(ToolChat("", message(""))));
    }
    if (role != std::string("assistant")) {
      EXPECT_EQ(ToolError("", message(", " + calls)),
                absl::StrCat("messages[2].tool_calls: must be absent unless the role is assistant; "
                             "the role is \"",
                             role, "\""));
    }
    if (!id.empty()) continue;
    for (const char* const absent : {R"(, "tool_call_id": null)", R"(, "tool_call_id": "")"}) {
      EXPECT_EQ(Texts(ToolChat("", message(absent))), Texts(ToolChat("", message(""))));
    }
    EXPECT_EQ(ToolError("", message(R"(, "tool_call_id": "c1")")),
              absl::StrCat("messages[2].tool_call_id: must be absent unless the role is tool; the "
                           "role is \"",
                           role, "\""));
  }
}

TEST(ChatMessages, BreakpointNeedsContent) {
  for (const char* const empty : {R"("role": "assistant")", R"("role": "user", "content": [])"}) {
    const auto message = [&](const char* breakpoint) {
      return absl::StrCat(R"({"role": "user", "content": "q"}, {)", empty, ", ", breakpoint, "}");
    };
    EXPECT_EQ(ToolError("", message(R"("cache_control": {"type": "ephemeral"})")),
              "messages[1].cache_control: needs a message with content; got none");
    EXPECT_THAT(ToolError("", message(R"("cache_breakpoint": 7)")),
                StartsWith("messages[1].cache_breakpoint: must be an object, true or false"));
    EXPECT_EQ(Texts(ToolChat("", message(R"("cache_breakpoint": false)"))).size(), 2u);
  }
}

// Recorded request bodies of real clients: each must be parsed without unknown fields, or refused
// if the case has the status 400.
TEST(RecordedClients, EveryBodyIsParsed) {
  size_t bodies = 0, refused = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(absl::StrCat(HEARTH_TEST_DATA_DIR, "/clients"))) {
    std::ifstream in(file.path());
    const json file_cases = json::parse(in)["cases"];
    for (const json& one : file_cases) {
      if (absl::StartsWith(one.value("path", ""), "/v1/messages")) continue;
      const bool is_chat = one.value("path", "/v1/chat/completions") == "/v1/chat/completions";
      const bool is_refused = one.value("status", 200) == 400;
      for (const json& recorded : one["bodies"]) {
        const auto body = ParseBody(recorded.dump());
        ASSERT_TRUE(body.ok());
        const auto request = is_chat ? ParseChat(body->root()) : ParseResponses(body->root());
        EXPECT_EQ(request.ok(), !is_refused) << file.path() << one["case"] << request.status();
        refused += is_refused ? 1 : 0;
        if (!request.ok()) continue;
        EXPECT_EQ(request->unknown.Text(), "") << file.path() << one["case"];
        const bool has_tools = recorded.contains("tools") && !recorded["tools"].empty();
        EXPECT_EQ(request->common.has_grammar(),
                  has_tools || recorded.contains("response_format") || recorded.contains("text"));
        ++bodies;
      }
    }
  }
  EXPECT_GT(bodies, 60u);
  EXPECT_GT(refused, 0u);
}

}  // namespace
}  // namespace hearth
