// Sends every field of every request with a value of every JSON type. Each request must get a
// response, and the worker must keep running.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/openai/openai_server.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/serving/http_caller.h"
#include "tests/support/sanitized.h"

namespace hearth {
namespace {

// A field, and the JSON of an object that contains it; "@" is replaced by the field.
struct Field {
  const char* name;
  const char* inside = "@";
};

// The fields of all kinds of requests. If a request gets a new field, add it here.
const Field kFields[] = {
    {"model"},
    {"messages"},
    {"prompt"},
    {"tokens"},
    {"stream"},
    {"stream_options"},
    {"include_usage", R"("stream": true, "stream_options": {@})"},
    {"n"},
    {"best_of"},
    {"max_tokens"},
    {"max_completion_tokens"},
    {"temperature"},
    {"top_p"},
    {"top_k"},
    {"min_p"},
    {"presence_penalty"},
    {"frequency_penalty"},
    {"repetition_penalty"},
    {"logit_bias"},
    {"5", R"("logit_bias": {@})"},
    {"stop_token_ids"},
    {"bad_token_ids"},
    {"min_tokens"},
    {"seed"},
    {"stop"},
    {"ignore_eos"},
    {"logprobs"},
    {"top_logprobs"},
    {"echo"},
    {"add_special_tokens"},
    {"user"},
    {"response_format"},
    {"type", R"("response_format": {@})"},
    {"tools"},
    {"functions"},
    {"tool_choice"},
    {"function_call"},
    {"audio"},
    {"modalities"},
    {"prediction"},
    {"web_search_options"},
    {"suffix"},
    {"guided_json"},
    {"guided_regex"},
    {"structured_outputs"},
    {"prompt_logprobs"},
    {"cache_salt"},
    {"guided_choice"},
    {"bad_words"},
    {"truncate_prompt_tokens", R"("prompt": [3, 4], @)"},
    {"truncation_side"},
    {"continue_final_message", R"("messages": [{"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"}], @)"},
    {"json_schema"},
    {"chat_template_kwargs"},
    {"a", R"("chat_template_kwargs": {@})"},
    {"n_cmpl"},
    {"n_predict"},
    {"repeat_penalty"},
    {"repeat_last_n", R"("repeat_penalty": 1.1, @)"},
    {"add_generation_prompt"},
    {"cache_prompt"},
    {"schema", R"("response_format": {"type": "text", @})"},
    {"cache_control", R"("messages": [{"role": "user", "content": "a", @}])"},
    {"type", R"("messages": [{"role": "user", "content": "a", "cache_control": {@}}])"},
    {"cache_breakpoint", R"("messages": [{"role": "user", "content": "a", @}])"},
    {"name", R"("messages": [{"role": "user", "content": "a", @}])"},
    {"prompt_cache_key"},
    {"prompt_cache_options"},
    {"mode", R"("prompt_cache_options": {@})"},
    {"ttl", R"("prompt_cache_options": {@})"},
    {"keep", R"("prompt_cache_options": {@})"},
    {"priority", R"("prompt_cache_options": {@})"},
    {"prewarm", R"("prompt_cache_options": {@})"},
    {"role", R"("messages": [{"content": "a", @}])"},
    {"content", R"("messages": [{"role": "user", @}])"},
    {"tool_calls", R"("messages": [{"role": "user", "content": "a", @}])"},
    {"tool_calls", R"("messages": [{"role": "assistant", @}])"},
    {"id",
     R"("messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}, @}]}])"},
    {"arguments", R"("messages": [{"role": "assistant", "tool_calls": [{"id": "a",
        "function": {"name": "f", @}}]}])"},
    {"tool_call_id", R"("messages": [{"role": "assistant", "tool_calls": [{"id": "a",
        "function": {"name": "f"}}]}, {"role": "tool", "content": "a", @}])"},
    {"type", R"("tools": [{"function": {"name": "f"}, @}])"},
    {"function", R"("tools": [{"type": "function", @}])"},
    {"name", R"("tools": [{"type": "function", "function": {@}}])"},
    {"parameters", R"("tools": [{"type": "function", "function": {"name": "f", @}}])"},
    {"strict", R"("tools": [{"type": "function", "function": {"name": "f", @}}])"},
    {"tool_choice", R"("tools": [{"type": "function", "function": {"name": "a"}}], @)"},
    {"function", R"("tools": [{"function": {"name": "a"}}], "tool_choice":
        {"type": "function", @})"},
    {"mode", R"("tools": [{"function": {"name": "a"}}], "tool_choice":
        {"type": "allowed_tools", "allowed_tools": {"tools": [{"function": {"name": "a"}}], @}})"},
    {"parallel_tool_calls", R"("tools": [{"function": {"name": "a"}}], @)"},
    {"json_schema", R"("response_format": {"type": "json_schema", @})"},
    {"schema", R"("response_format": {"type": "json_schema", "json_schema": {@}})"},
    {"json", R"("structured_outputs": {@})"},
    {"json_object", R"("structured_outputs": {@})"},
    {"type", R"("messages": [{"role": "user", "content": [{"text": "a", @}]}])"},
    {"text", R"("messages": [{"role": "user", "content": [{"type": "text", @}]}])"},
    {"prompt_cache_breakpoint",
     R"("messages": [{"role": "user", "content": [{"type": "text", "text": "a", @}]}])"},
    {"ttl", R"("messages": [{"role": "user", "content": [{"type": "text", "text": "a",
        "prompt_cache_breakpoint": {@}}]}])"},
    {"input"},
    {"instructions"},
    {"max_output_tokens"},
    {"metadata"},
    {"include"},
    {"text"},
    {"previous_response_id"},
    {"conversation"},
    {"background"},
    {"reasoning"},
    {"client_metadata"},
    {"format", R"("text": {@})"},
    {"verbosity", R"("text": {@})"},
    {"type", R"("text": {"format": {"schema": {}, @}})"},
    {"schema", R"("text": {"format": {"type": "json_schema", @}})"},
    {"comparison_response_id", R"("prompt_cache_options": {@})"},
    {"name", R"("tools": [{"type": "function", @}])"},
    {"parameters", R"("tools": [{"type": "function", "name": "f", @}])"},
    {"strict", R"("tools": [{"type": "function", "name": "f", @}])"},
    {"defer_loading", R"("tools": [{"type": "function", "name": "f", @}])"},
    {"tool_choice", R"("tools": [{"type": "function", "name": "a"}], @)"},
    {"name", R"("tools": [{"type": "function", "name": "a"}], "tool_choice":
        {"type": "function", @})"},
    {"tools", R"("tools": [{"type": "function", "name": "a"}], "tool_choice":
        {"type": "allowed_tools", "mode": "auto", @})"},
    {"type", R"("input": [{"role": "user", "content": "a", @}])"},
    {"role", R"("input": [{"content": "a", @}])"},
    {"content", R"("input": [{"role": "user", @}])"},
    {"type", R"("input": [{"role": "user", "content": [{"text": "a", @}]}])"},
    {"text", R"("input": [{"role": "user", "content": [{"type": "input_text", @}]}])"},
    {"cache_control", R"("input": [{"role": "user", "content": "a", @}])"},
    {"call_id", R"("input": [{"type": "function_call", "name": "f", @}])"},
    {"name", R"("input": [{"type": "function_call", "call_id": "a", @}])"},
    {"arguments", R"("input": [{"type": "function_call", "call_id": "a", "name": "f", @}])"},
    {"cache_breakpoint", R"("input": [{"type": "function_call", "call_id": "a", "name": "f",
        @}])"},
    {"call_id", R"("input": [{"type": "function_call", "call_id": "a", "name": "f"},
        {"type": "function_call_output", "output": "a", @}])"},
    {"output", R"("input": [{"type": "function_call", "call_id": "a", "name": "f"},
        {"type": "function_call_output", "call_id": "a", @}])"},
};

// The object that a request body has.
enum class BodyKind : uint8_t { kPrompt, kMessages, kInput };

std::vector<std::string> ValuesOfAllTypes() {
  const std::string text = absl::StrCat("\"", std::string(5000, 'x'), "\"");
  return {"null",
          "true",
          "false",
          "0",
          "1",
          "-1",
          "7",
          "4294967295",
          "18446744073709551615",
          "-9223372036854775808",
          "99999999999999999999999",
          "0.5",
          "-0.0",
          "1e300",
          "-1e-300",
          "\"a\"",
          "\"\"",
          "\"text\"",
          "\"\\ud83d\\ude00\\u0000\"",
          text,
          "[]",
          "[1]",
          "[-1]",
          "[1e300]",
          "[null]",
          "[\"a\"]",
          absl::StrCat("[", text, "]"),
          "[[1]]",
          "[[\"a\"]]",
          "[{}]",
          "{}",
          R"({"a": 1})",
          R"({"5": 1})",
          R"({"type": 1})",
          R"({"type": "text"})",
          R"({"a": {"b": []}})"};
}

// Returns a request body with the field. Other required fields have valid values.
std::string BodyWith(const Field& field, const std::string& value, BodyKind kind) {
  const std::string set = absl::StrCat("\"", field.name, "\": ", value);
  std::string inside = field.inside;
  inside.replace(inside.find('@'), 1, set);
  std::vector<std::string> fields = {inside};
  const auto fill = [&](const std::string& name, const std::string& usual) {
    if (inside.rfind(absl::StrCat("\"", name, "\""), 0) != 0) {
      fields.push_back(absl::StrCat("\"", name, "\": ", usual));
    }
  };
  fill(kind == BodyKind::kInput ? "max_output_tokens" : "max_tokens", "1");
  fill("tokens", "[3]");
  if (kind == BodyKind::kInput) {
    fill("input", "\"the lamp\"");
  } else if (kind == BodyKind::kMessages) {
    fill("messages", R"([{"role": "user", "content": "the lamp"}])");
  } else if (inside.rfind("\"messages\"", 0) != 0) {
    fill("prompt", "\"the lamp\"");
  }
  return absl::StrCat("{", absl::StrJoin(fields, ", "), "}");
}

class FieldTypesTest : public testing::Test {
 protected:
  FieldTypesTest() {
    OpenAiOptions options;
    options.http.listen = "127.0.0.1:0";
    options.generator = server_.generator();
    options.admission = server_.admission();
    options.model = "tiny";
    openai_ = OpenAiServer::Open(options).value();
  }
  static WorkerServer::Options Options() {
    WorkerServer::Options options = WorkerServer::Invariant();
    options.geometry.context_tokens = 48;  // a short context keeps answers short
    return options;
  }
  int StatusOf(const std::string& path, const std::string& body) {
    HttpCaller caller(openai_->address());
    caller.Say(absl::StrCat("POST ", path,
                            " HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            "Content-Length: ",
                            body.size(), "\r\n\r\n", body));
    const std::string answer = caller.HearAll();
    return answer.size() < 12 ? 0 : std::stoi(answer.substr(9, 3));
  }

  WorkerServer server_{Options()};
  std::unique_ptr<OpenAiServer> openai_;
};

TEST_F(FieldTypesTest, EveryFieldTypeGetsAnswer) {
  const std::set<int> allowed = {200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 503};
  const std::vector<std::pair<std::string, BodyKind>> paths = {
      {"/v1/chat/completions", BodyKind::kMessages},
      {"/v1/completions", BodyKind::kPrompt},
      {"/v1/responses", BodyKind::kInput},
      {"/tokenize", BodyKind::kPrompt},
      {"/tokenize", BodyKind::kMessages},
      {"/detokenize", BodyKind::kPrompt}};
  const std::vector<std::string> values = ValuesOfAllTypes();
  const size_t step = kIsSanitized ? 11 : 1;  // a sanitizer tries three values of each field
  size_t served = 0, refused = 0, first = 0;
  for (const Field& field : kFields) {
    for (size_t i = first++ % step; i < values.size(); i += step) {
      for (const auto& [path, kind] : paths) {
        const std::string body = BodyWith(field, values[i], kind);
        const int status = StatusOf(path, body);
        ASSERT_EQ(allowed.count(status), 1u) << status << " to " << path << " " << body;
        (status == 200 ? served : refused) += 1;
      }
    }
  }
  EXPECT_GT(served, 1000u / step);
  EXPECT_GT(refused, 1000u / step);
  EXPECT_EQ(StatusOf("/tokenize", R"({"prompt": "the lamp"})"), 200) << "the worker lives";
}

TEST_F(FieldTypesTest, EveryInvalidBodyIs400) {
  for (const std::string& value : ValuesOfAllTypes()) {
    for (const char* path :
         {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"}) {
      EXPECT_EQ(StatusOf(path, value), 400) << path << " " << value;
    }
  }
}

}  // namespace
}  // namespace hearth
