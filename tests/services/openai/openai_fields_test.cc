// Compares the table of fields with lists of all fields of OpenAI's API, vLLM and llama.cpp.
#include "services/openai/openai_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "services/openai/openai_request.h"
#include "services/openai/openai_server.h"
#include "services/openai/responses_request.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/serving/http_caller.h"

namespace hearth {
namespace {

using FieldsJson = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

const std::map<std::string, FieldPlace>& Places() {
  static const auto& places =
      *new std::map<std::string, FieldPlace>{{"chat", kInChat},
                                             {"completion", kInCompletion},
                                             {"tokenize", kInTokenize},
                                             {"detokenize", kInDetokenize},
                                             {"message", kInMessage},
                                             {"part", kInPart},
                                             {"stream_options", kInStreamOptions},
                                             {"response_format", kInResponseFormat},
                                             {"prompt_cache_options", kInCacheOptions},
                                             {"prompt_cache_breakpoint", kInBreakpoint},
                                             {"cache_control", kInCacheControl},
                                             {"responses", kInResponses},
                                             {"text_field", kInText},
                                             {"text_format", kInTextFormat},
                                             {"item", kInItem},
                                             {"item_part", kInItemPart},
                                             {"flat_tool", kInFlatTool}};
  return places;
}

// A field of OpenAI's API, vLLM or llama.cpp, with a value that has an effect and a value that has
// none.
struct KnownField {
  std::string source;
  std::string name;
  FieldPlace place = kInChat;
  FieldsJson asks, nothing;
};

std::vector<KnownField> KnownFields() {
  const FieldsJson lists =
      FieldsJson::parse(ReadAll(absl::StrCat(HEARTH_TEST_DATA_DIR, "/http_fields.json")));
  std::vector<KnownField> known;
  for (const FieldsJson& source : lists["sources"]) {
    EXPECT_TRUE(source.contains("from") && source.contains("date"));
    for (const auto& [place, bit] : Places()) {
      if (!source.contains(place)) continue;
      for (const std::string name : source[place]) {
        const std::string own = absl::StrCat(place, ".", name);
        const FieldsJson& values = lists["values"][lists["values"].contains(own) ? own : name];
        known.push_back({source["name"], name, bit, values.at(0), values.at(1)});
      }
    }
  }
  return known;
}

const char* PathOfCall(uint64_t place) {
  switch (place) {
    case kInCompletion:
      return "/v1/completions";
    case kInTokenize:
      return "/tokenize";
    case kInDetokenize:
      return "/detokenize";
    case kInResponses:
    case kInText:
    case kInTextFormat:
    case kInItem:
    case kInItemPart:
    case kInFlatTool:
      return "/v1/responses";
    default:
      return "/v1/chat/completions";
  }
}

// Returns whether a request without this field is invalid.
bool IsRequired(const KnownField& field) {
  if (field.place == kInResponses && field.name == "text") return false;
  const std::set<std::string> required = {
      "messages",    "prompt",       "tokens", "role",   "content", "type", "text",
      "json_schema", "tool_call_id", "input",  "schema", "call_id", "name", "output"};
  return required.count(field.name) > 0 &&
         FindOpenAiField(field.name, field.place)->use == FieldUse::kServed;
}

// Returns a request of /v1/responses with the fields that `field` needs. Sets `object` to the
// object of the field.
FieldsJson ResponsesBody(const KnownField& field, FieldsJson** object) {
  FieldsJson body = {
      {"max_output_tokens", 1},
      {"input",
       {{{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "b"}}}}},
        {{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "{}"}},
        {{"type", "function_call"}, {"call_id", "d"}, {"name", "g"}, {"arguments", "{}"}},
        {{"type", "function_call_output"}, {"call_id", "d"}, {"output", "r"}}}},
      {"tools", {{{"type", "function"}, {"name", "f"}, {"parameters", {{"type", "object"}}}}}}};
  if (field.name == "tools") body.erase("tools");
  FieldsJson& input = body["input"];
  *object = nullptr;
  if (field.place == kInItem) {
    const bool is_result = field.name == "call_id" || field.name == "output";
    const bool is_message =
        field.name == "content" || field.name == "role" || field.name == "phase";
    *object = &input[is_message ? 0 : is_result ? 3 : 1];
  }
  if (field.place == kInItemPart) *object = &input[0]["content"][0];
  if (field.place == kInFlatTool) *object = &body["tools"][0];
  if (field.place == kInText || field.place == kInTextFormat) {
    body["text"]["format"] = {{"type", "json_schema"}, {"name", "s"}, {"schema", {{"enum", {1}}}}};
    *object = field.place == kInText ? &body["text"] : &body["text"]["format"];
  }
  return body;
}

// Returns a valid request body with this field and the fields that it needs. If `value` is null,
// leaves the field out.
FieldsJson BodyWith(const KnownField& field, const FieldsJson* value) {
  FieldsJson body = {{"max_tokens", 1}};
  FieldsJson* object = &body;
  if (absl::string_view(PathOfCall(field.place)) == "/v1/responses") {
    FieldsJson* inner = nullptr;
    body = ResponsesBody(field, &inner);
    if (inner != nullptr) object = inner;
  } else if (field.place == kInDetokenize) {
    body["tokens"] = {4};
  } else if (field.place == kInCompletion ||
             (field.place == kInTokenize && field.name != "messages" && field.name != "tools" &&
              field.name != "add_generation_prompt" && field.name != "continue_final_message")) {
    body["prompt"] = "the lamp";
    if (field.name == "truncate_prompt_tokens") body["prompt"] = {4, 5, 6};
  } else {
    body["messages"] = {{{"role", "system"}, {"content", "s"}},
                        {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "b"}}}}}};
    if (field.name == "add_generation_prompt" || field.name == "continue_final_message") {
      body["messages"].push_back({{"role", "assistant"}, {"content", "c"}});
    }
    if (field.name == "top_logprobs") body["logprobs"] = true;
  }
  const bool is_about_tools = field.name == "tool_choice" || field.name == "parallel_tool_calls";
  if (is_about_tools && field.place != kInResponses) {
    body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  }
  if (field.place == kInMessage) object = &body["messages"][1];
  if (field.name == "tool_calls") (*object)["role"] = "assistant";
  if (field.name == "tool_call_id") {
    FieldsJson calls = FieldsJson::array();
    for (const char* const id : {"c", "d"}) {
      calls.push_back({{"id", id}, {"function", {{"name", id}, {"arguments", "{}"}}}});
    }
    body["messages"][0] = {{"role", "assistant"}, {"tool_calls", calls}};
    *object = {{"role", "tool"}, {"tool_call_id", "d"}, {"content", "r"}};
  }
  if (field.place == kInPart) object = &body["messages"][1]["content"][0];
  if (field.place == kInBreakpoint || field.place == kInCacheControl) {
    const bool is_control = field.place == kInCacheControl;
    object = &body["messages"][1]["content"][0]
                  [is_control ? "cache_control" : "prompt_cache_breakpoint"];
    *object = FieldsJson::object();
  }
  if (field.place == kInStreamOptions) object = &(body["stream_options"] = FieldsJson::object());
  if (field.place == kInCacheOptions) {
    object = &(body["prompt_cache_options"] = FieldsJson::object());
  }
  if (field.place == kInResponseFormat) object = &(body["response_format"] = {{"type", "text"}});
  if (field.place == kInResponseFormat && field.name == "json_schema") {
    *object = {{"type", "json_schema"}, {"json_schema", {{"schema", {{"enum", {1}}}}}}};
  }
  // max_tokens is only there to keep the answers to other fields short, so remove it if the tested
  // field sets the same limit.
  if (field.name == "n_predict" || field.name == "max_completion_tokens") body.erase("max_tokens");
  if (value != nullptr) {
    (*object)[field.name] = *value;
  } else if (!IsRequired(field)) {
    object->erase(field.name);
  }
  return body;
}

// Returns the fields that a response repeats, except fields that it repeats with all inner fields.
std::string Repeats(const OpenAiRequest& request) {
  if (request.repeated.empty()) return "";
  FieldsJson fields = FieldsJson::parse(absl::StrCat("{", request.repeated.substr(1), "}"));
  for (const char* const name : {"text", "tools"}) fields.erase(name);
  return fields.dump();
}

// Returns all members of a parsed request as text.
std::string StateOf(const OpenAiRequest& request) {
  std::string text = absl::StrCat(
      request.common.DebugString(), "model ", request.model, " chat ", request.is_chat, " stream ",
      request.stream, " usage ", request.include_usage, " logprobs ", request.logprobs, " echo ",
      request.echo, request.only_echo, " bad ", absl::StrJoin(request.bad_words, ","), " prewarm ",
      request.prewarm, " explain ", request.explain, " ttl ", request.common.ttl_s(), " key ",
      request.cache_key, " unknown ", request.unknown.Text(), " repeated ", Repeats(request));
  for (const v1::PromptInput& prompt : request.prompts) text += prompt.DebugString();
  return text;
}

// Returns the parsed request as text, or "error: ..." if parsing fails.
std::string Read(const FieldsJson& json, uint64_t place) {
  const auto body = ParseBody(json.dump());
  EXPECT_TRUE(body.ok()) << body.status();
  const auto read = [&] {
    if (absl::string_view(PathOfCall(place)) == "/v1/responses") {
      return ParseResponses(body->root());
    }
    if (place == kInCompletion) return ParseCompletion(body->root());
    return place == kInTokenize ? ParseTokenize(body->root()) : ParseChat(body->root());
  };
  const absl::StatusOr<OpenAiRequest> request = read();
  return request.ok() ? StateOf(*request) : absl::StrCat("error: ", request.status().message());
}

TEST(OpenAiFields, TableHasEveryKnownField) {
  const std::vector<KnownField> known = KnownFields();
  EXPECT_GT(known.size(), 300u);
  for (const KnownField& field : known) {
    EXPECT_NE(FindOpenAiField(field.name, field.place), nullptr)
        << field.source << " " << PathOfCall(field.place) << " " << field.name;
  }
}

TEST(OpenAiFields, EveryRowIsFoundByName) {
  for (const OpenAiField& row : OpenAiFieldTable()) {
    for (uint64_t bit = 1; bit <= kInFlatChoice; bit = bit << 1) {
      if ((row.places & bit) != 0) {
        EXPECT_EQ(FindOpenAiField(row.name, bit), &row) << row.name;
      }
    }
  }
  for (const std::string& name : {std::string(), std::string("nobody"), std::string(5000, 'n')}) {
    EXPECT_EQ(FindOpenAiField(name, kInChat), nullptr);
  }
}

TEST(OpenAiFields, ParsedFieldsFollowTable) {
  // Supported fields that leave the parsed request unchanged: they are only checked against other
  // fields, or the tested value is the default.
  const std::map<std::string, uint64_t> traceless = {
      {"best_of", kInChat | kInCompletion},
      {"type", kInPart | kInResponseFormat | kInItem | kInItemPart | kInTextFormat | kInFlatTool},
      {"include", kInResponses},
      {"role", kInMessage},
      {"truncation_side", kInCompletion},
      {"repeat_last_n", kInChat | kInCompletion}};
  for (const KnownField& field : KnownFields()) {
    if (field.place == kInDetokenize) continue;  // OpenAiServer parses this body, not ParseTokenize
    SCOPED_TRACE(absl::StrCat(field.source, " ", PathOfCall(field.place), " ", field.name, " ",
                              field.asks.dump()));
    const OpenAiField& row = *FindOpenAiField(field.name, field.place);
    const std::string without = Read(BodyWith(field, nullptr), field.place);
    const std::string asks = Read(BodyWith(field, &field.asks), field.place);
    EXPECT_THAT(without, testing::Not(StartsWith("error")));
    switch (row.use) {
      case FieldUse::kServed:
        EXPECT_THAT(asks, testing::Not(StartsWith("error")));
        if (const auto found = traceless.find(field.name);
            found == traceless.end() || (found->second & field.place) == 0) {
          EXPECT_NE(asks, without);
        }
        break;
      case FieldUse::kIgnored:
        EXPECT_EQ(asks, without);
        break;
      case FieldUse::kRefused:
        EXPECT_THAT(asks, StartsWith("error: "));
        EXPECT_THAT(asks, HasSubstr(": is not supported by this server; leave it out"));
        EXPECT_THAT(asks, HasSubstr(field.name));
        break;
    }
    if (IsRequired(field)) continue;
    for (const FieldsJson& nothing : {field.nothing, FieldsJson(nullptr)}) {
      EXPECT_EQ(Read(BodyWith(field, &nothing), field.place), without) << nothing;
    }
  }
}

TEST(OpenAiFields, NeutralValuesCountAsAbsent) {
  const std::vector<std::pair<const char*, const char*>> values = {
      {"max_tokens", "-1"},
      {"max_tokens", "null"},
      {"max_completion_tokens", "-1"},
      {"n_predict", "-1"},
      {"seed", "-1"},
      {"stop", "\"\""},
      {"stop", "[\"\"]"},
      {"stop", "[]"},
      {"stop", "[\"\", \"\"]"},
      {"logit_bias", "[]"},
      {"logit_bias", "{}"},
      {"n", "null"},
      {"stop_token_ids", "[]"},
      {"bad_token_ids", "[]"},
      {"min_tokens", "0"},
      {"logprobs", "false"},
      {"best_of", "null"},
      {"tools", "[]"},
      {"tool_choice", "\"auto\""},
      {"tool_choice", "\"none\""},
      {"modalities", "[\"text\"]"},
      {"suffix", "\"\""},
      {"guided_choice", "[]"},
      {"grammar", "\"\""},
      {"temperature", "null"},
      {"echo", "false"},
      {"stream", "false"},
      {"response_format", "null"},
      {"response_format", "{}"},
      {"stream_options", "false"},
      {"reasoning_effort", "\"none\""},
      {"reasoning_effort", "\"medium\""},
      {"verbosity", "\"low\""},
      {"thinking_token_budget", "512"},
      {"samplers", R"(["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p",
                      "xtc", "temperature"])"},
      {"chat_template_kwargs", "{\"enable_thinking\": true}"},
      {"chat_template_kwargs", "{\"enable_thinking\": false}"}};
  for (const uint64_t place : {kInChat, kInCompletion}) {
    const FieldsJson plain = {{"messages", {{{"role", "user"}, {"content", "a"}}}}};
    FieldsJson body = place == kInChat ? plain : FieldsJson{{"prompt", "a"}};
    const std::string without = Read(body, place);
    for (const auto& [name, value] : values) {
      FieldsJson with = body;
      with[name] = FieldsJson::parse(value);
      EXPECT_EQ(Read(with, place), without) << PathOfCall(place) << " " << name << " " << value;
    }
    if (place == kInChat) {
      body["logprobs"] = 0;
      EXPECT_EQ(Read(body, place), without);
    }
    body["stop"] = "x";
    FieldsJson with = body;
    body["bad_words"] = {"y"};
    with["stop"] = {"", "x"};
    with["bad_words"] = {"y", ""};
    EXPECT_EQ(Read(with, place), Read(body, place));
  }
}

// Each of these values requests something that is not supported, even if the value is empty.
TEST(OpenAiFields, UnsupportedValuesAreRefused) {
  for (const char* body :
       {R"({"json_schema": {}})", R"({"web_search_options": {}})",
        R"({"chat_template_kwargs": {"custom_instructions": true}})", R"({"n_probs": 1})",
        R"({"samplers": ["penalties", "dry"]})", R"({"samplers": "dry"})",
        R"({"samplers": ["dry", "penalties", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p",
                         "xtc", "temperature"]})",
        R"({"samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p",
                         "xtc", "temperature", ""]})",
        R"({"cache_breakpoint": true})"}) {
    FieldsJson json = FieldsJson::parse(body);
    json["messages"] = {{{"role", "user"}, {"content", "a"}}};
    EXPECT_THAT(Read(json, kInChat), HasSubstr("is not supported by this server")) << body;
  }
}

TEST(UnknownFields, NestedFieldsAreReported) {
  const auto chat = [](const std::string& fields) {
    return absl::StrCat(R"({"messages": [{"role": "user", "content": "a"}], "tools": [
        {"type": "function", "function": {"name": "f"}}], )",
                        fields, "}");
  };
  const auto items = [](const std::string& fields) {
    return absl::StrCat(R"({"input": "a", "tools": [{"type": "function", "name": "f"}], )", fields,
                        "}");
  };
  const std::tuple<std::string, bool, const char*> bodies[] = {
      {chat(R"("tool_choice": {"type": "function", "x": 1, "function": {"name": "f", "y": 1}})"),
       true, "tool_choice.x, tool_choice.function.y"},
      {chat(R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "x": 1,
               "tools": [{"type": "function", "function": {"name": "f", "y": 1}}]}})"),
       true, "tool_choice.allowed_tools.x, tool_choice.function.y"},
      {chat(R"("response_format": {"type": "json_schema", "json_schema": {"name": "s", "x": 1,
               "schema": {"type": "object"}}})"),
       true, "response_format.json_schema.x"},
      {R"({"messages": [{"role": "assistant", "cache_breakpoint": {"z": 1}, "tool_calls": [{"id":
           "a", "type": "function", "index": 0, "x": 1, "function": {"name": "f", "y": 1}}]},
           {"role": "user", "content": "a"}]})",
       true,
       "prompt_cache_breakpoint.z, messages[].tool_calls[].x, messages[].tool_calls[].function.y"},
      {items(R"("tool_choice": {"type": "function", "name": "f", "x": 1})"), false,
       "tool_choice.x"},
      {items(R"("tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
                {"type": "function", "name": "f", "x": 1}]})"),
       false, "tool_choice.x"}};
  for (const auto& [text, is_chat, unknown] : bodies) {
    const auto body = ParseBody(text);
    ASSERT_TRUE(body.ok()) << body.status();
    const auto request = is_chat ? ParseChat(body->root()) : ParseResponses(body->root());
    ASSERT_TRUE(request.ok()) << request.status() << text;
    EXPECT_EQ(request->unknown.Text(), unknown);
  }
}

TEST(UnknownFields, NamesTruncatedAndSanitized) {
  UnknownFields unknown;
  unknown.Add(kInChat, "a\r\nSet-Cookie: b");
  unknown.Add(kInPart, std::string(5000, 'x'));
  unknown.Add(kInPart, std::string(5000, 'x'));
  unknown.Add(kInChat, "caf\xC3\xA9");
  EXPECT_EQ(unknown.Text(), absl::StrCat("a??Set-Cookie??b, messages[].content[].",
                                         std::string(64, 'x'), "..., caf??"));
  for (int i = 0; i < 100; ++i) unknown.Add(kInMessage, absl::StrCat("name_", i));
  EXPECT_EQ(unknown.names().size(), UnknownFields::kMaxNames);
  EXPECT_LE(unknown.Text().size(), 1024u);
  EXPECT_THAT(unknown.Text(), testing::EndsWith("messages[].name_4, ..."));
}

class FieldsServerTest : public ::testing::Test {
 protected:
  FieldsServerTest() {
    OpenAiOptions options;
    options.http.listen = "127.0.0.1:0";
    options.generator = server_.generator();
    options.admission = server_.admission();
    options.model = "tiny";
    openai_ = OpenAiServer::Open(options).value();
  }
  static constexpr int kContextTokens = 2048;  // the prompt's text about tools has hundreds

  static WorkerServer::Options Options() {
    WorkerServer::Options options = WorkerServer::Invariant();
    options.geometry.context_tokens = kContextTokens;
    return options;
  }
  // Sends a POST request. Returns the whole response, including its headers.
  std::string Post(const std::string& path, const FieldsJson& body) {
    const std::string text = body.dump();
    HttpCaller caller(openai_->address());
    caller.Say(absl::StrCat("POST ", path,
                            " HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            "Content-Length: ",
                            text.size(), "\r\n\r\n", text));
    return caller.HearAll();
  }

  WorkerServer server_{Options()};
  std::unique_ptr<OpenAiServer> openai_;
};

TEST_F(FieldsServerTest, AnswersFollowFieldTable) {
  std::set<std::string> done;
  for (const KnownField& field : KnownFields()) {
    if (!done.insert(absl::StrCat(field.place, field.name)).second) continue;
    const bool is_refused = FindOpenAiField(field.name, field.place)->use == FieldUse::kRefused;
    std::vector<std::pair<FieldsJson, bool>> values = {{field.asks, is_refused}};
    if (!IsRequired(field)) values.emplace_back(field.nothing, false);
    for (const auto& [value, refuses] : values) {
      const FieldsJson body = BodyWith(field, &value);
      const std::string answer = Post(PathOfCall(field.place), body);
      SCOPED_TRACE(absl::StrCat(PathOfCall(field.place), " ", body.dump(), " -> ", answer));
      ASSERT_GE(answer.size(), 12u);
      EXPECT_EQ(answer.substr(9, 3), refuses ? "400" : "200");
      EXPECT_THAT(answer, testing::Not(HasSubstr("X-Hearth-Unknown-Fields")));
      if (refuses) {
        EXPECT_THAT(answer, HasSubstr(field.name));
        EXPECT_THAT(answer, HasSubstr(": is not supported by this server"));
      }
    }
  }
}

TEST_F(FieldsServerTest, HeaderListsUnknownFields) {
  const FieldsJson chat = {{"max_tokens", 1},
                           {"nobody\r\nX-Evil: 1", 1},
                           {"messages", {{{"role", "user"}, {"content", "a"}, {"colour", "red"}}}}};
  EXPECT_THAT(Post("/v1/chat/completions", chat),
              HasSubstr("\r\nX-Hearth-Unknown-Fields: nobody??X-Evil??1, messages[].colour\r\n"));
  FieldsJson other = {{"prompt", "a"}, {"max_tokens", 1}, {"colour", "red"}, {"stream", true}};
  for (const char* path : {"/v1/completions", "/tokenize"}) {
    EXPECT_THAT(Post(path, other), HasSubstr("\r\nX-Hearth-Unknown-Fields: colour\r\n")) << path;
  }
  EXPECT_THAT(Post("/detokenize", {{"tokens", {4}}, {"colour", "red"}}),
              HasSubstr("\r\nX-Hearth-Unknown-Fields: colour\r\n"));
  other["colour"] = nullptr;
  EXPECT_THAT(Post("/tokenize", other), testing::Not(HasSubstr("X-Hearth-Unknown-Fields")));
}

TEST_F(FieldsServerTest, EachUnknownFieldIsLoggedOnce) {
  testing::internal::CaptureStderr();
  for (size_t i = 0; i < 2 * OpenAiServer::kMaxLoggedFields / UnknownFields::kMaxNames; ++i) {
    FieldsJson body = {{"tokens", {4}}, {"colour", "red"}};
    for (size_t k = 1; k < UnknownFields::kMaxNames; ++k) body[absl::StrCat("c", i, "_", k)] = 1;
    Post("/detokenize", body);
  }
  const std::vector<std::string> parts =
      absl::StrSplit(testing::internal::GetCapturedStderr(), "an unknown request field");
  EXPECT_EQ(parts.size() - 1, OpenAiServer::kMaxLoggedFields);
  const auto is_colour = [](const std::string& part) { return absl::StrContains(part, "colour"); };
  EXPECT_EQ(std::count_if(parts.begin(), parts.end(), is_colour), 1);
}

TEST_F(FieldsServerTest, EchoOfFullContextIsRefused) {
  FieldsJson body = {
      {"prompt", std::vector<int>(kContextTokens, 4)}, {"max_tokens", 0}, {"echo", true}};
  EXPECT_THAT(Post("/v1/completions", body),
              testing::AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("shorten it by one token")));
  body["prompt"] = std::vector<int>(kContextTokens - 1, 4);
  EXPECT_THAT(Post("/v1/completions", body), StartsWith("HTTP/1.1 200"));
}

TEST_F(FieldsServerTest, TokenizeForUnknownModelIs404) {
  for (const auto& [path, field] : std::map<std::string, FieldsJson>{
           {"/tokenize", {{"prompt", "a"}}}, {"/detokenize", {{"tokens", {4}}}}}) {
    FieldsJson body = field;
    body["model"] = "tiny";
    EXPECT_THAT(Post(path, body), StartsWith("HTTP/1.1 200"));
    body["model"] = "other";
    EXPECT_THAT(Post(path, body), StartsWith("HTTP/1.1 404"));
  }
}

// Generates the text of docs/reference/http-fields.md from the table of fields.
class FieldsPage {
 public:
  static std::string Text() {
    std::string page =
        "# Fields of HTTP requests\n\n"
        "Generated from the table in `services/openai/openai_fields.cc`. "
        "`HEARTH_WRITE_FIELDS=1 build/tests/hearth_openai_test --gtest_filter='*FieldsPage*'` "
        "writes this page; without the variable the test compares it. "
        "[HTTP API](../http-api.md) describes the calls.\n\n"
        "The table has the fields of OpenAI's API, of vLLM, of llama.cpp's server and of "
        "Anthropic's Messages API:\n\n"
        "- **served**: the field is read and checked;\n"
        "- **ignored**: the field is not read, because it cannot change the answer;\n"
        "- **refused**: the answer is 400 and names the field, unless its value asks for "
        "nothing.\n\n"
        "`null` and the values in the third column ask for nothing: the field counts as absent. "
        "*empty* means `false`, `\"\"`, `[]` and `{}`. Fields that are not in the table are "
        "unknown and ignored. The header `X-Hearth-Unknown-Fields` of the answer lists up to 8 "
        "of them; the log has the first 256 names, each once.\n";
    Add("/v1/chat/completions, /v1/completions", kInChat | kInCompletion, &page);
    Add("/v1/responses", kInResponses, &page,
        "A field that is not listed here is treated as in a chat.\n\n");
    Add("/tokenize, /detokenize", kInTokenize | kInDetokenize, &page,
        "Fields of the calls above that are not listed here are ignored, because they concern "
        "answers only.\n\n");
    Add("Fields of other fields",
        ~(kInChat | kInCompletion | kInTokenize | kInDetokenize | kInResponses | kOfMessages),
        &page,
        "In `chat_template_kwargs` every field that is not listed here is refused unless it is "
        "`null` or `false`.\n\n");
    Add("/v1/messages, /v1/messages/count_tokens", kOfMessages, &page,
        "Fields of Anthropic's Messages API. Blocks of `system` and of a `tool_result` have the "
        "fields of `messages[].content[]`.\n\n");
    return page;
  }

 private:
  static constexpr uint64_t kOfMessages = kInMessages | kInTurn | kInBlock | kInCustomTool |
                                          kInOutputConfig | kInOutputFormat | kInToolChoice;

  static void Add(const char* title, uint64_t places, std::string* page, const char* intro = "") {
    absl::StrAppend(page, "\n## ", title, "\n\n", intro,
                    "| field | is | asks for nothing | note |\n| --- | --- | --- | --- |\n");
    for (const OpenAiField& field : OpenAiFieldTable()) {
      if ((field.places & places) == 0) continue;
      const char* const uses[] = {"served", "ignored", "**refused**"};
      absl::StrAppend(page, "| ", Names(field, places), " | ", uses[static_cast<int>(field.use)],
                      " | ", Nothing(field), " | ", Escaped(field.note), " |\n");
    }
  }
  static std::string Escaped(absl::string_view note) {
    return absl::StrReplaceAll(note, {{"<", "&lt;"}, {"|", "\\|"}});
  }
  static std::string Names(const OpenAiField& field, uint64_t places) {
    std::vector<std::string> names;
    for (uint64_t bit = 1; bit <= kInFlatChoice; bit = bit << 1) {
      if ((field.places & places & bit) == 0) continue;
      const absl::string_view path = PathOfPlace(bit);
      std::string name = absl::StrCat("`", path, field.name, "`");
      const bool is_new = std::find(names.begin(), names.end(), name) == names.end();
      if (!path.empty() && is_new) names.push_back(std::move(name));
    }
    if (!names.empty()) return absl::StrJoin(names, ", ");
    const uint64_t found = field.places & places;
    const std::map<uint64_t, std::string> only = {{kInChat, " (chats)"},
                                                  {kInCompletion, " (completions)"},
                                                  {kInTokenize, " (/tokenize)"},
                                                  {kInDetokenize, " (/detokenize)"}};
    const auto where = only.find(found);
    return absl::StrCat("`", field.name, "`", where == only.end() ? "" : where->second);
  }
  static std::string Nothing(const OpenAiField& field) {
    if (field.use == FieldUse::kIgnored) return "";
    const std::vector<std::pair<FieldNothing, const char*>> all = {
        {kFalse, "false"},  {kTrue, "true"},      {kZero, "0"},
        {kOne, "1"},        {kMinusOne, "-1"},    {kEmptyText, "\"\""},
        {kEmptyList, "[]"}, {kEmptyObject, "{}"}, {kEmptyTexts, "[\"\"]"}};
    constexpr uint16_t kEmpty = kFalse | kEmptyText | kEmptyList | kEmptyObject;
    const bool is_empty = (field.nothing & kEmpty) == kEmpty;
    std::vector<std::string> values;
    if (is_empty) values.push_back("*empty*");
    for (const auto& [bit, text] : all) {
      if (is_empty && (kEmpty & bit) != 0) continue;
      if ((field.nothing & bit) != 0) values.push_back(absl::StrCat("`", text, "`"));
    }
    for (const absl::string_view word : absl::StrSplit(field.words, ' ', absl::SkipEmpty())) {
      if ((field.nothing & kAllWords) != 0) break;  // the table's column for notes lists the words
      values.push_back(absl::StrCat("`\"", word, "\"`"));
      if ((field.nothing & kWordList) != 0) values.push_back(absl::StrCat("`[\"", word, "\"]`"));
    }
    return absl::StrJoin(values, " ");
  }
};

TEST(FieldsPage, DocumentationMatchesFieldTable) {
  const std::string path =
      absl::StrCat(HEARTH_TEST_DATA_DIR, "/../../docs/reference/http-fields.md");
  const std::string text = FieldsPage::Text();
  if (std::getenv("HEARTH_WRITE_FIELDS") != nullptr) std::ofstream(path) << text;
  EXPECT_EQ(ReadAll(path), text) << "HEARTH_WRITE_FIELDS=1 writes the page anew";
}

}  // namespace
}  // namespace hearth
