#include "services/openai/responses_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "proto/error_reason.h"
#include "services/openai/openai_request.h"

namespace hearth {
namespace {

using ResponsesJson = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::StatusOr<OpenAiRequest> ReadResponse(const std::string& text) {
  const auto body = ParseBody(text);
  if (!body.ok()) return body.status();
  return ParseResponses(body->root());
}

// `fields`: the fields of the body, as JSON. Adds an input if there is none.
std::string BodyOf(const std::string& fields) {
  const bool has_input = fields.find("\"input\"") != std::string::npos;
  return absl::StrCat("{", has_input ? "" : R"("input": "a", )", fields, "}");
}

OpenAiRequest RequestFor(const std::string& fields) {
  auto request = ReadResponse(BodyOf(fields));
  EXPECT_TRUE(request.ok()) << request.status() << " " << fields;
  return request.ok() ? *std::move(request) : OpenAiRequest();
}

absl::Status ErrorFor(const std::string& fields) { return ReadResponse(BodyOf(fields)).status(); }

// Returns the messages of the prompt, each as "ROLE: TEXT" with "*" after a breakpoint.
std::string PromptOf(const OpenAiRequest& request) {
  std::string text;
  for (const v1::ChatMessage& message : request.prompts[0].chat().messages()) {
    absl::StrAppend(&text, message.role(), ": ");
    for (const v1::ContentPart& part : message.parts()) {
      absl::StrAppend(&text, part.text(), part.cache_breakpoint() ? "*" : "");
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

std::string PromptFor(const std::string& fields) { return PromptOf(RequestFor(fields)); }

std::string ChatPrompt(const std::string& fields) {
  const auto body = ParseBody(absl::StrCat("{", fields, "}"));
  EXPECT_TRUE(body.ok()) << body.status();
  const auto request = ParseChat(body->root());
  EXPECT_TRUE(request.ok()) << request.status() << " " << fields;
  return request.ok() ? PromptOf(*request) : "";
}

TEST(ResponsesRequest, TextInputIsUserMessage) {
  EXPECT_EQ(PromptFor(R"("input": "hello")"), "user: hello\n");
  EXPECT_EQ(PromptFor(R"("input": "hello", "instructions": "Be brief.")"),
            "system: Be brief.*\nuser: hello\n");
  EXPECT_EQ(PromptFor(R"("input": "hello", "instructions": "")"), "user: hello\n");
}

TEST(ResponsesRequest, ConversationPromptEqualsChatPrompt) {
  const std::string parameters =
      R"({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})";
  const std::string responses = absl::StrCat(
      R"("instructions": "Be brief.", "tools": [{"type": "function", "name": "weather",
          "description": "Weather of a city.", "strict": true, "parameters": )",
      parameters, R"(}], "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Paris, "},
                                     {"type": "input_text", "text": "Rome?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "annotations": [], "text": "Let me see."}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather",
         "arguments": "{\"city\":\"Paris\"}", "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "weather",
         "arguments": "{\"city\": \"Rome\"}"},
        {"type": "function_call_output", "call_id": "c2", "output": "20 C"},
        {"type": "function_call_output", "call_id": "c1",
         "output": [{"type": "input_text", "text": "18 C"}]},
        {"type": "function_call", "call_id": "c3", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c3", "output": ""},
        {"type": "message", "role": "developer", "content": "Answer now."}])");
  const std::string chat = absl::StrCat(
      R"("tools": [{"type": "function", "function": {"name": "weather",
          "description": "Weather of a city.", "strict": true, "parameters": )",
      parameters, R"(}}], "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Paris, "},
                                     {"type": "text", "text": "Rome?"}]},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [
          {"id": "c1", "type": "function",
           "function": {"name": "weather", "arguments": "{\"city\": \"Paris\"}"}},
          {"id": "c2", "type": "function",
           "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "18 C"},
        {"role": "tool", "tool_call_id": "c2", "content": "20 C"},
        {"role": "assistant", "content": null, "tool_calls": [
          {"id": "c3", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c3", "content": ""},
        {"role": "developer", "content": "Answer now."}])");
  const OpenAiRequest request = RequestFor(responses);
  EXPECT_EQ(PromptOf(request), ChatPrompt(chat));
  EXPECT_EQ(request.earlier_calls, 3u);
  EXPECT_EQ(request.unknown.Text(), "");
  EXPECT_TRUE(request.prompts[0].chat().strict());
}

TEST(ResponsesRequest, CallsJoinOnlyMessageInFront) {
  const std::string call =
      R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"})";
  const std::string answer = R"({"role": "assistant", "content": "t"})";
  const std::string shown = R"({"name": "f", "parameters": {}})";
  EXPECT_EQ(PromptFor(absl::StrCat(R"("input": [)", answer, ",", call, "]")),
            absl::StrCat("assistant: t\n", shown, "\n"));
  EXPECT_EQ(PromptFor(absl::StrCat(R"("input": [)", call, ",", answer, "]")),
            absl::StrCat("assistant: ", shown, "\nassistant: t\n"));
  EXPECT_EQ(PromptFor(absl::StrCat(R"("input": [)", call, ",",
                                   R"({"role": "user", "content": "u"},)", call, "]")),
            absl::StrCat("assistant: ", shown, "\nuser: u\nassistant: ", shown, "\n"));
  EXPECT_EQ(PromptFor(absl::StrCat(R"("input": [)", call, ",", call, "]")),
            absl::StrCat("assistant: [", shown, ", ", shown, "]\n"));
}

TEST(ResponsesRequest, BreakpointsAreRead) {
  const std::string part = R"({"type": "input_text", "text": "doc",
      "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "1h"}})";
  const OpenAiRequest request = RequestFor(
      absl::StrCat(R"("instructions": "s", "input": [{"role": "user", "content": [)", part, "]}]"));
  EXPECT_EQ(PromptOf(request), "system: s\nuser: doc*\n");
  EXPECT_EQ(request.common.ttl_s(), 3600u);
  const std::string call = R"({"type": "function_call", "call_id": "c", "name": "f",
                               "cache_control": {"type": "ephemeral"}})";
  const std::string result = R"({"type": "function_call_output", "call_id": "c", "output": "r",
                                 "cache_breakpoint": true})";
  EXPECT_EQ(PromptFor(absl::StrCat(R"("input": [)", call, "]")),
            "assistant: {\"name\": \"f\", \"parameters\": {}}*\n");
  EXPECT_THAT(PromptFor(absl::StrCat(R"("input": [)", call, ",", result, "]")),
              HasSubstr("```*\n"));
  EXPECT_EQ(PromptFor(R"("input": [{"role": "user", "content": "a", "cache_breakpoint": true}])"),
            "user: a*\n");
  EXPECT_EQ(PromptFor(R"("instructions": "s", "prompt_cache_options": {"mode": "explicit"})"),
            "system: s\nuser: a\n");
}

TEST(ResponsesRequest, AnswerOptionsAreRead) {
  const OpenAiRequest request = RequestFor(
      R"("model": "m", "stream": true, "max_output_tokens": 5, "temperature": 0.5, "top_p": 0.25,
         "seed": 3, "top_k": 9, "stop": "x", "prompt_cache_key": "k", "store": true,
         "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "high"},
         "text": {"verbosity": "low"}, "client_metadata": {"a": "b"}, "service_tier": "auto",
         "truncation": "auto")");
  EXPECT_TRUE(request.is_chat && request.stream);
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.common.n(), 1u);
  EXPECT_EQ(request.common.max_new_tokens(), 5u);
  EXPECT_TRUE(request.common.fits_context() && request.common.report_writes());
  EXPECT_EQ(request.common.sampling().temperature(), 0.5f);
  EXPECT_EQ(request.common.sampling().top_p(), 0.25f);
  EXPECT_EQ(request.common.sampling().seed(), 3u);
  EXPECT_EQ(request.common.sampling().top_k(), 9u);
  EXPECT_EQ(request.common.stop(0), "x");
  EXPECT_EQ(request.cache_key, "k");
  EXPECT_FALSE(request.common.has_grammar());
  EXPECT_EQ(request.unknown.Text(), "");
  EXPECT_EQ(RequestFor(R"("colour": "red")").unknown.Text(), "colour");
  EXPECT_EQ(RequestFor("\"store\": false").common.max_new_tokens(), 4096u);
}

constexpr char kTools[] =
    R"("tools": [{"type": "function", "name": "f"}, {"type": "function", "name": "g"}])";

TEST(ResponsesRequest, ToolChoicesAreRead) {
  const auto names = [](const std::string& choice) {
    return RequestFor(absl::StrCat(kTools, R"(, "tool_choice": )", choice)).answer.calls.names;
  };
  EXPECT_THAT(names("\"auto\""), testing::ElementsAre("f", "g"));
  EXPECT_THAT(names("\"required\""), testing::ElementsAre("f", "g"));
  EXPECT_THAT(names("\"none\""), testing::IsEmpty());
  EXPECT_THAT(names(R"({"type": "function", "name": "g"})"), testing::ElementsAre("g"));
  EXPECT_THAT(names(R"({"type": "allowed_tools", "mode": "auto",
                        "tools": [{"type": "function", "name": "g"}]})"),
              testing::ElementsAre("g"));
  const OpenAiRequest one = RequestFor(absl::StrCat(kTools, R"(, "parallel_tool_calls": false)"));
  EXPECT_FALSE(one.answer.calls.parallel);
}

TEST(ResponsesRequest, TextFormatMakesGrammar) {
  const OpenAiRequest request = RequestFor(
      R"("text": {"format": {"type": "json_schema", "name": "p", "strict": true,
                             "schema": {"type": "object", "properties": {}}}})");
  ASSERT_TRUE(request.common.has_grammar());
  EXPECT_EQ(request.answer.paths.back().second, "text.format.schema");
  EXPECT_TRUE(RequestFor(R"("text": {"format": {"type": "json_object"}})").common.has_grammar());
  EXPECT_FALSE(RequestFor(R"("text": {"format": {"type": "text"}})").common.has_grammar());
  EXPECT_FALSE(RequestFor(R"("text": {"format": null})").common.has_grammar());
}

TEST(ResponsesRequest, WrongValuesNamePath) {
  const std::string call = R"({"type": "function_call", "call_id": "c", "name": "f"})";
  const std::pair<std::string, const char*> wrong[] = {
      {R"("input": null)", "input: is missing"},
      {R"("input": 1)", "input: must be a text or a list of items; got 1"},
      {R"("input": [])", "input: must be a text or a list of items; got []"},
      {R"("input": [1])", "input[0]: must be an object; got 1"},
      {R"("input": [{}])", "input[0]: must have a type: message, function_call,"},
      {R"("input": [{"type": "web_search_call"}])",
       "input[0].type: must be message, function_call, function_call_output or reasoning; got"},
      {R"("input": [{"type": "item_reference", "id": "msg_1"}])",
       "input[0]: must be the item itself, because nothing is stored; got an item_reference"},
      {R"("input": [{"type": "message", "content": "a"}])", "input[0]: must have a role: system,"},
      {R"("input": [{"role": "tool", "content": "a"}])",
       "input[0].role: must be system, developer, user or assistant; got \"tool\""},
      {R"("input": [{"role": "user"}])", "input[0].content: is missing"},
      {R"("input": [{"role": "user", "content": 1}])",
       "input[0].content: must be a string or a list of parts; got 1"},
      {R"("input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}])",
       "input[0].content[0]: must be a part of type \"input_text\" or \"output_text\""},
      {R"("input": [{"type": "function_call", "name": "f"}])",
       "input[0]: must have a call_id; got none"},
      {R"("input": [{"type": "function_call", "call_id": "c"}])",
       "input[0]: must have a name; got none"},
      {R"("input": [{"type": "function_call", "call_id": 1, "name": "f"}])",
       "input[0].call_id: must be a string; got 1"},
      {R"("input": [{"type": "function_call", "call_id": "c", "name": "f g"}])",
       "input[0].name: must be 1 to 128 letters"},
      {R"("input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}])",
       "input[0].arguments: must be a string of JSON; got {}"},
      {absl::StrCat(R"("input": [)", call, R"(, {"type": "function_call_output", "output": "r"}])"),
       "input[1]: must have a call_id; got none"},
      {absl::StrCat(R"("input": [)", call,
                    R"(, {"type": "function_call_output", "call_id": "c"}])"),
       "input[1].output: is missing"},
      {absl::StrCat(R"("input": [)", call,
                    R"(, {"type": "function_call_output", "call_id": "d", "output": "r"}])"),
       "input[1].call_id: must be the id of a call in an earlier assistant message; got \"d\""},
      {R"("instructions": 1)", "instructions: must be a string; got 1"},
      {R"("max_output_tokens": 0)", "max_output_tokens: must be a whole number"},
      {R"("metadata": 1)", "metadata: must be an object; got 1"},
      {R"("include": "x")", "include: must be a list of strings; got \"x\""},
      {R"("include": [1])", "include[0]: must be a string; got 1"},
      {R"("text": 1)", "text: must be an object; got 1"},
      {R"("text": {"format": {}, "format2": 1}, "top_k": "x")", "top_k: "},
      {R"("text": {"format": {"type": "grammar"}})", "text.format.type: must be \"text\""},
      {R"("text": {"format": {"type": "json_schema"}})", "text.format: must have a schema"},
      {R"("text": {"format": {"type": "json_schema", "schema": "{}"}})",
       "text.format.schema: must be an object"},
      {R"("tools": [{"type": "function"}])", "tools[0]: must have a name; got none"},
      {R"("tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}])",
       "tools[0].parameters"},
      {R"("tool_choice": "required")", "tool_choice: needs tools; got none"},
      {R"("stream": true, "prompt_cache_options": {"prewarm": true})",
       "stream: must be false if prompt_cache_options.prewarm is true; got true"},
      {absl::StrCat(kTools, R"(, "tool_choice": {"type": "function", "name": "h"})"),
       "tool_choice.name: must be the name of a function in tools; got \"h\""}};
  for (const auto& [fields, why] : wrong) {
    const absl::Status status = ErrorFor(fields);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << fields;
    EXPECT_THAT(std::string(status.message()), StartsWith(why)) << fields;
  }
}

// Each error says what to send instead.
TEST(ResponsesRequest, StateAndForeignToolsAreRefused) {
  const std::pair<const char*, const char*> refused[] = {
      {R"("previous_response_id": "r")", "send the earlier items in input"},
      {R"("conversation": "c")", "send the earlier items in input"},
      {R"("background": true)", "send stream"},
      {R"("prompt": {"id": "p"})", "send instructions and input"},
      {R"("messages": [{"role": "user", "content": "a"}])", "send input"},
      {R"("max_tokens": 5)", "send max_output_tokens"},
      {R"("response_format": {"type": "json_object"})", "send text.format"},
      {R"("n": 2)", "send several requests"},
      {R"("top_logprobs": 2)", "/v1/chat/completions"},
      {R"("include": ["message.output_text.logprobs"])", "/v1/chat/completions"},
      {R"("mirostat": 2)", "mirostat: is not supported by this server"},
      {R"("tools": [{"type": "web_search"}])",
       "tools[0].type: must be \"function\", the only supported type of tool; got \"web_search\""},
      {R"("tools": [{"type": "namespace", "name": "n", "tools": []}])", "got \"namespace\""}};
  for (const auto& [fields, why] : refused) {
    const absl::Status status = ErrorFor(fields);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why)) << fields;
    EXPECT_EQ(ReasonOf(status), kUnsupportedParameter) << fields;
  }
  EXPECT_EQ(PromptFor(R"("previous_response_id": null, "background": false, "n": 1)"), "user: a\n");
}

ResponsesJson Repeated(const std::string& fields) {
  return ResponsesJson::parse("{" + RequestFor(fields).repeated.substr(1) + "}");
}

TEST(ResponsesRequest, ResponseRepeatsFields) {
  EXPECT_EQ(Repeated("\"store\": true"), ResponsesJson::parse(R"({
      "instructions": null, "max_output_tokens": null, "metadata": {}, "parallel_tool_calls": true,
      "prompt_cache_key": null, "temperature": null, "text": {"format": {"type": "text"}},
      "tool_choice": "auto", "tools": [], "top_p": null, "prompt_cache_diagnostics": null})"));
  const ResponsesJson repeated = Repeated(absl::StrCat(
      kTools, R"(, "instructions": "a\nb", "metadata": {"k": "v"}, "tool_choice": "none",
                "temperature": 0.5, "prompt_cache_options": {"comparison_response_id": "r"})"));
  EXPECT_EQ(repeated["instructions"], "a\nb");
  EXPECT_EQ(repeated["metadata"], ResponsesJson::parse(R"({"k": "v"})"));
  EXPECT_EQ(repeated["tool_choice"], "none");
  EXPECT_EQ(repeated["tools"].size(), 2u);
  EXPECT_EQ(repeated["temperature"], 0.5);
  EXPECT_EQ(repeated["prompt_cache_diagnostics"]["type"], "comparison_response_not_found");
}

TEST(ResponsesRequest, LongFieldsAreNotRepeated) {
  const std::string text(kMaxRepeatedBytes, 'x');
  const std::string fields =
      absl::StrCat(R"("instructions": ")", text, R"(", "metadata": {"a": ")",
                   text.substr(0, kMaxRepeatedBytes - 1000), R"("}, "top_p": 0.5)");
  const OpenAiRequest request = RequestFor(fields);
  EXPECT_LE(request.repeated.size(), kMaxRepeatedBytes + 1024);
  const ResponsesJson repeated = Repeated(fields);
  EXPECT_TRUE(repeated["instructions"].is_null());
  EXPECT_EQ(repeated["metadata"].size(), 1u);
  EXPECT_EQ(repeated["top_p"], 0.5);
}

TEST(ResponsesRequest, ManyItemsAreRead) {
  std::string items = R"({"role": "user", "content": "a"})";
  for (int i = 0; i < 5000; ++i) {
    absl::StrAppend(&items, R"(,{"type": "function_call", "call_id": "c)", i,
                    R"(", "name": "f"}, {"type": "function_call_output", "call_id": "c)", i,
                    R"(", "output": "r"})");
  }
  const OpenAiRequest request = RequestFor(absl::StrCat(R"("input": [)", items, "]"));
  EXPECT_EQ(request.prompts[0].chat().messages_size(), 10001);
  EXPECT_EQ(request.earlier_calls, 5000u);
}

}  // namespace
}  // namespace hearth
