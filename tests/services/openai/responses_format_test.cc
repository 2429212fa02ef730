#include "services/openai/responses_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "proto/error_reason.h"
#include "services/openai/responses_request.h"

namespace hearth {
namespace {

using ResponsesJson = nlohmann::ordered_json;

OpenAiRequest RequestOf(const std::string& text) {
  const auto body = ParseBody(text);
  EXPECT_TRUE(body.ok()) << body.status();
  auto request = ParseResponses(body->root());
  EXPECT_TRUE(request.ok()) << request.status();
  return *std::move(request);
}

ResponsesFormat FormatOf(const std::string& body = R"({"input": "a", "metadata": {"k": "v"}})") {
  return ResponsesFormat(RequestOf(body), ResponseTerms{"resp_1", "m", "1", 1700000000}, nullptr);
}

// Parses the events. Checks that the type of each event is the name of its line "event".
std::vector<ResponsesJson> Events(const std::string& out) {
  std::vector<ResponsesJson> events;
  for (const absl::string_view event : absl::StrSplit(out, "\n\n", absl::SkipEmpty())) {
    const std::vector<std::string> lines = absl::StrSplit(event, '\n');
    EXPECT_EQ(lines.size(), 2u) << event;
    events.push_back(ResponsesJson::parse(lines[1].substr(sizeof("data: ") - 1)));
    EXPECT_EQ(lines[0], absl::StrCat("event: ", events.back()["type"].get<std::string>()));
    EXPECT_EQ(events.back()["sequence_number"], events.size() - 1);
  }
  return events;
}

std::vector<std::string> TypesOf(const std::vector<ResponsesJson>& events) {
  std::vector<std::string> types;
  for (const ResponsesJson& event : events) {
    types.emplace_back(absl::StripPrefix(event["type"].get<std::string>(), "response."));
  }
  return types;
}

CallPiece Text(const std::string& text) { return {CallPiece::kText, 0, text}; }
CallPiece Name(size_t call, const std::string& name) { return {CallPiece::kName, call, name}; }
CallPiece Arguments(size_t call, const std::string& text) {
  return {CallPiece::kArguments, call, text};
}

const AnswerUsage kUsage = {10, 6, 4, 3, ""};

// Returns the events of a stream with one answer.
std::vector<ResponsesJson> Stream(const std::vector<std::vector<CallPiece>>& steps, AnswerEnd end,
                                  const AnswerUsage& usage) {
  ResponsesFormat format = FormatOf();
  std::string out;
  format.Begin(7, usage, &out);
  for (const std::vector<CallPiece>& pieces : steps) format.AddPieces(0, pieces, nullptr, &out);
  format.EndAnswer(0, end, "", &out);
  format.End(usage, &out);
  return Events(out);
}

ResponsesJson Whole(const ReadAnswer& read, AnswerEnd end, const AnswerUsage& usage) {
  ResponsesFormat format = FormatOf();
  HeldText out;
  format.BeginWhole(7, &out);
  WholeAnswer answer;
  answer.read = read;
  answer.end = end;
  format.WriteAnswer(0, answer, &out);
  format.EndWhole(usage, &out);
  return ResponsesJson::parse(out.Take());
}

TEST(ResponsesFormat, TextStreamHasAllEvents) {
  const std::vector<ResponsesJson> events =
      Stream({{Text("a \"")}, {Text("b\n")}}, AnswerEnd::kStop, {});
  EXPECT_THAT(
      TypesOf(events),
      testing::ElementsAre("created", "in_progress", "output_item.added", "content_part.added",
                           "output_text.delta", "output_text.delta", "output_text.done",
                           "content_part.done", "output_item.done", "completed"));
  EXPECT_EQ(events[0]["response"]["status"], "in_progress");
  EXPECT_EQ(events[0]["response"]["output"], ResponsesJson::array());
  EXPECT_TRUE(events[0]["response"]["usage"].is_null());
  const ResponsesJson& item = events[8]["item"];
  EXPECT_EQ(events[2]["item"]["content"], ResponsesJson::array());
  EXPECT_EQ(events[2]["item"]["status"], "in_progress");
  EXPECT_EQ(events[3]["part"]["text"], "");
  EXPECT_EQ(events[4]["delta"], "a \"");
  EXPECT_EQ(events[6]["text"], "a \"b\n");
  EXPECT_EQ(events[7]["part"], item["content"][0]);
  EXPECT_EQ(item["status"], "completed");
  for (size_t i = 3; i < 8; ++i) {
    EXPECT_EQ(events[i]["item_id"], item["id"]);
    EXPECT_EQ(events[i]["output_index"], 0);
    EXPECT_EQ(events[i]["content_index"], 0);
  }
  EXPECT_EQ(events[9]["response"]["output"], ResponsesJson::array({item}));
  EXPECT_EQ(events[9]["response"]["status"], "completed");
}

TEST(ResponsesFormat, CallStreamHasAllEvents) {
  const std::vector<ResponsesJson> events =
      Stream({{Text("See.")},
              {Name(0, "f"), Arguments(0, "{\"a\":")},
              {Arguments(0, " 1}"), Name(1, "g"), Arguments(1, "{}")}},
             AnswerEnd::kToolCalls, {});
  EXPECT_THAT(
      TypesOf(events),
      testing::ElementsAre("created", "in_progress", "output_item.added", "content_part.added",
                           "output_text.delta", "output_text.done", "content_part.done",
                           "output_item.done", "output_item.added", "function_call_arguments.delta",
                           "function_call_arguments.delta", "function_call_arguments.done",
                           "output_item.done", "output_item.added", "function_call_arguments.delta",
                           "function_call_arguments.done", "output_item.done", "completed"));
  EXPECT_EQ(events[8]["item"]["arguments"], "");
  EXPECT_EQ(events[8]["item"]["status"], "in_progress");
  EXPECT_EQ(events[11]["arguments"], "{\"a\": 1}");
  EXPECT_EQ(events[12]["output_index"], 1);
  const ResponsesJson& output = events.back()["response"]["output"];
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[1], events[12]["item"]);
  EXPECT_EQ(output[1]["type"], "function_call");
  EXPECT_EQ(output[1]["name"], "f");
  EXPECT_EQ(output[1]["arguments"], "{\"a\": 1}");
  EXPECT_EQ(output[2]["status"], "completed");
  std::set<std::string> ids;
  for (const ResponsesJson& item : output) EXPECT_TRUE(ids.insert(item["id"]).second);
  EXPECT_NE(output[1]["call_id"], output[2]["call_id"]);
}

TEST(ResponsesFormat, WholeResponseEqualsStream) {
  ReadAnswer read;
  read.text = "See.\x01";
  read.calls = {{"f", "{\"a\": 1}"}, {"g", "{}"}};
  ResponsesJson whole = Whole(read, AnswerEnd::kToolCalls, kUsage);
  ResponsesJson streamed = Stream({{Text("See.\x01"), Name(0, "f"), Arguments(0, "{\"a\": 1}")},
                                   {Name(1, "g"), Arguments(1, "{}")}},
                                  AnswerEnd::kToolCalls, kUsage)
                               .back()["response"];
  EXPECT_GE(whole["completed_at"], 1700000000);
  whole.erase("completed_at");
  streamed.erase("completed_at");
  EXPECT_EQ(whole, streamed);
}

TEST(ResponsesFormat, ResponseHasFieldsOfClients) {
  const ResponsesJson response = Whole({"Hi", {}, false}, AnswerEnd::kStop, kUsage);
  EXPECT_EQ(response["id"], "resp_1");
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["created_at"], 1700000000);
  EXPECT_EQ(response["model"], "m");
  EXPECT_EQ(response["seed"], 7);
  EXPECT_EQ(response["store"], false);
  EXPECT_EQ(response["metadata"], ResponsesJson::parse(R"({"k": "v"})"));
  EXPECT_EQ(response["usage"], ResponsesJson::parse(R"({"input_tokens": 10, "input_tokens_details":
      {"cached_tokens": 6, "cache_write_tokens": 4}, "output_tokens": 3,
      "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 13})"));
  EXPECT_EQ(response["output"][0]["content"][0], ResponsesJson::parse(R"({"type": "output_text",
      "annotations": [], "logprobs": [], "text": "Hi"})"));
  for (const char* const name :
       {"error", "incomplete_details", "previous_response_id", "prompt_cache_diagnostics",
        "conversation", "prompt", "user", "max_tool_calls", "safety_identifier"}) {
    ASSERT_TRUE(response.contains(name)) << name;
    EXPECT_TRUE(response[name].is_null()) << name;
  }
  AnswerUsage usage = kUsage;
  usage.cache = "[1]";
  EXPECT_EQ(Whole({"", {}, false}, AnswerEnd::kStop, usage)["usage"]["hearth_cache"],
            ResponsesJson::array({1}));
}

TEST(ResponsesFormat, TruncatedAnswerIsIncomplete) {
  const std::vector<ResponsesJson> events = Stream({{Text("a")}}, AnswerEnd::kLength, {});
  EXPECT_EQ(TypesOf(events).back(), "incomplete");
  const ResponsesJson& response = events.back()["response"];
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  EXPECT_TRUE(response["completed_at"].is_null());
  EXPECT_EQ(Whole({"a", {}, false}, AnswerEnd::kLength, {})["status"], "incomplete");
  // A stop string ends the answer inside the arguments of the last call.
  const ResponsesJson cut =
      Whole({"", {{"f", "{}"}, {"g", "{"}}, true}, AnswerEnd::kStopString, {});
  EXPECT_EQ(cut["output"][0]["status"], "completed");
  EXPECT_EQ(cut["output"][1]["status"], "incomplete");
  EXPECT_EQ(cut["status"], "completed");
  const ResponsesJson streamed =
      Stream({{Name(0, "f"), Arguments(0, "{}"), Name(1, "g"), Arguments(1, "{")}},
             AnswerEnd::kStopString, {})
          .back()["response"];
  EXPECT_EQ(streamed["output"], cut["output"]);
}

TEST(ResponsesFormat, EmptyAnswerHasOneMessage) {
  const ResponsesJson output = Stream({}, AnswerEnd::kStop, {}).back()["response"]["output"];
  ASSERT_EQ(output.size(), 1u);
  EXPECT_EQ(output[0]["content"][0]["text"], "");
  EXPECT_EQ(output, Whole({}, AnswerEnd::kStop, {})["output"]);
}

// A client runs a call at its output_item.done.
TEST(ResponsesFormat, FailedStreamLeavesItemOpen) {
  ResponsesFormat format = FormatOf();
  std::string out;
  format.Begin(7, {}, &out);
  format.AddPieces(0, std::vector<CallPiece>{{CallPiece::kName, 0, "f"}}, nullptr, &out);
  format.AddPieces(0, std::vector<CallPiece>{{CallPiece::kArguments, 0, "{"}}, nullptr, &out);
  format.Fail(absl::UnavailableError("no memory"), &out);
  const std::vector<ResponsesJson> events = Events(out);
  EXPECT_THAT(TypesOf(events), testing::ElementsAre("created", "in_progress", "output_item.added",
                                                    "function_call_arguments.delta", "failed"));
  EXPECT_EQ(events.back()["response"]["output"], ResponsesJson::array());
}

TEST(ResponsesFormat, FailedStreamNamesReason) {
  ResponsesFormat format = FormatOf();
  std::string out;
  format.Begin(7, {}, &out);
  format.AddPieces(0, std::vector<CallPiece>{Text("a")}, nullptr, &out);
  format.Fail(absl::UnavailableError("no memory"), &out);
  const std::vector<ResponsesJson> events = Events(out);
  EXPECT_EQ(TypesOf(events).back(), "failed");
  const ResponsesJson& response = events.back()["response"];
  EXPECT_EQ(response["status"], "failed");
  EXPECT_EQ(response["error"],
            ResponsesJson::parse(R"({"code": "server_error", "message": "no memory"})"));
}

TEST(ResponsesFormat, FailureBeforeBeginSendsAllEvents) {
  ResponsesFormat format = FormatOf();
  std::string out;
  format.Fail(PromptTooLong("chat.messages", 100, 200), &out);
  const std::vector<ResponsesJson> events = Events(out);
  EXPECT_THAT(TypesOf(events), testing::ElementsAre("created", "in_progress", "failed"));
  const ResponsesJson& error = events.back()["response"]["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_THAT(error["message"].get<std::string>(),
              testing::StartsWith("input: This model's maximum context length is 100 tokens"));
}

TEST(ResponsesFormat, ErrorNamesFieldOfRequestBody) {
  const ResponsesFormat format = FormatOf();
  const ResponsesJson body = ResponsesJson::parse(
      format.ErrorBody(absl::InvalidArgumentError("max_new_tokens: must be 1")));
  EXPECT_EQ(body["error"]["message"], "max_output_tokens: must be 1");
  EXPECT_EQ(body["error"]["param"], "max_output_tokens");
  const ResponsesJson full =
      ResponsesJson::parse(format.ErrorBody(PromptTooLong("chat.messages", 100, 200)));
  EXPECT_EQ(full["error"]["param"], "input");
  EXPECT_EQ(full["error"]["code"], "context_length_exceeded");
}

// The memory of the last events is counted before they are made.
TEST(ResponsesFormat, CountedBytesCoverLastEvents) {
  ResponsesFormat format = FormatOf();
  std::string out;
  format.Begin(7, {}, &out);
  for (int i = 0; i < 1000; ++i) {
    out.clear();
    format.AddPieces(0, std::vector<CallPiece>{Text(std::string(100, 'x'))}, nullptr, &out);
  }
  const uint64_t counted = format.bytes();
  out = std::string();
  format.EndAnswer(0, AnswerEnd::kStop, "", &out);
  EXPECT_LE(out.capacity(), counted);
  out = std::string();
  format.End({}, &out);
  EXPECT_LE(out.capacity(), counted);
  EXPECT_GE(format.bytes(), counted);
}

TEST(ResponsesFormat, IdsDifferInLaterTurns) {
  std::set<std::string> ids;
  std::string input = R"({"role": "user", "content": "a"})";
  for (int turn = 0; turn < 3; ++turn) {
    ResponsesFormat format = FormatOf(absl::StrCat(R"({"input": [)", input, "]}"));
    HeldText out;
    format.BeginWhole(std::nullopt, &out);
    WholeAnswer answer;
    answer.read = {"b", {{"f", "{}"}}, false};
    answer.end = AnswerEnd::kToolCalls;
    format.WriteAnswer(0, answer, &out);
    format.EndWhole({}, &out);
    const ResponsesJson output = ResponsesJson::parse(out.Take())["output"];
    for (const ResponsesJson& item : output) {
      EXPECT_TRUE(ids.insert(item["id"]).second);
      absl::StrAppend(&input, ",", item.dump());
    }
    EXPECT_TRUE(ids.insert(output[1]["call_id"]).second);
    absl::StrAppend(&input, R"(,{"type": "function_call_output", "output": "c", "call_id": )",
                    output[1]["call_id"].dump(), "}");
  }
}

}  // namespace
}  // namespace hearth
