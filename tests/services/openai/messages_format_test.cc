// Tests the responses of Anthropic's Messages API.
#include "services/openai/messages_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "proto/error_reason.h"

namespace hearth {
namespace {

using FormatJson = nlohmann::ordered_json;
using ::testing::ElementsAre;

MessagesFormat Format(bool prewarm = false) {
  OpenAiRequest request;
  request.prewarm = prewarm;
  request.earlier_calls = 2;
  return MessagesFormat(request, {"msg_1", "gemma", "1", 0}, nullptr);
}

AnswerUsage Usage(uint64_t written, uint64_t generated) {
  AnswerUsage usage;
  usage.prompt_tokens = 10;
  usage.cached_tokens = 4;
  usage.written_tokens = written;
  usage.generated_tokens = generated;
  return usage;
}

// Returns the data of the events. Each event must have the same type in both of its lines.
std::vector<FormatJson> Events(const std::string& stream) {
  std::vector<FormatJson> events;
  for (const absl::string_view event : absl::StrSplit(stream, "\n\n", absl::SkipEmpty())) {
    const std::pair<std::string, std::string> lines =
        absl::StrSplit(event, absl::MaxSplits('\n', 1));
    events.push_back(FormatJson::parse(lines.second.substr(6), nullptr, false));
    EXPECT_EQ(lines.second.substr(0, 6), "data: ");
    EXPECT_EQ(lines.first, absl::StrCat("event: ", events.back().value("type", "")));
  }
  return events;
}

// Returns the events as texts such as "start 0 text", "delta 0 TEXT" and "stop 0".
std::vector<std::string> Blocks(const std::vector<FormatJson>& events) {
  std::vector<std::string> texts;
  for (const FormatJson& event : events) {
    const std::string type = event["type"];
    if (!absl::StartsWith(type, "content_block_")) continue;
    std::string text = absl::StrCat(type.substr(14), " ", event["index"].get<int>());
    if (event.contains("content_block")) {
      absl::StrAppend(&text, " ", event["content_block"]["type"].get<std::string>());
    } else if (event.contains("delta")) {
      const FormatJson& delta = event["delta"];
      absl::StrAppend(&text, " ",
                      delta["type"] == "text_delta"
                          ? delta["text"].get<std::string>()
                          : "json " + delta["partial_json"].get<std::string>());
    }
    texts.push_back(text);
  }
  return texts;
}

FormatJson Whole(const WholeAnswer& answer, MessagesFormat format = Format()) {
  HeldText out;
  format.BeginWhole(7, &out);
  format.WriteAnswer(0, answer, &out);
  format.EndWhole(Usage(5, 3), &out);
  return FormatJson::parse(out.Take(), nullptr, false);
}

TEST(MessagesFormat, StreamHasBlockForEachPart) {
  MessagesFormat format = Format();
  std::string out;
  format.Begin(7, Usage(0, 0), &out);
  format.AddPieces(0, {{CallPiece::kText, 0, "a\""}}, nullptr, &out);
  format.AddPieces(0, {}, nullptr, &out);
  format.AddPieces(0,
                   {{CallPiece::kText, 0, "b"},
                    {CallPiece::kName, 0, "f"},
                    {CallPiece::kArguments, 0, "{\"x\": "}},
                   nullptr, &out);
  format.AddPieces(0,
                   {{CallPiece::kArguments, 0, "1}"},
                    {CallPiece::kName, 1, "g"},
                    {CallPiece::kArguments, 1, "{}"},
                    {CallPiece::kText, 0, "c"}},
                   nullptr, &out);
  format.EndAnswer(0, AnswerEnd::kToolCalls, "", &out);
  format.End(Usage(5, 3), &out);
  const std::vector<FormatJson> events = Events(out);
  EXPECT_THAT(Blocks(events),
              ElementsAre("start 0 text", "delta 0 a\"", "delta 0 b", "stop 0", "start 1 tool_use",
                          "delta 1 json {\"x\": ", "delta 1 json 1}", "stop 1", "start 2 tool_use",
                          "delta 2 json {}", "stop 2", "start 3 text", "delta 3 c", "stop 3"));
  const FormatJson& start = events.front();
  EXPECT_EQ(start["type"], "message_start");
  EXPECT_EQ(start["message"]["id"], "msg_1");
  EXPECT_EQ(start["message"]["model"], "gemma");
  EXPECT_EQ(start["message"]["content"], FormatJson::array());
  EXPECT_TRUE(start["message"]["stop_reason"].is_null());
  EXPECT_EQ(start["message"]["usage"]["input_tokens"], 6);
  EXPECT_EQ(start["message"]["usage"]["cache_read_input_tokens"], 4);
  const FormatJson& end = events[events.size() - 2];
  EXPECT_EQ(end["type"], "message_delta");
  EXPECT_EQ(end["delta"]["stop_reason"], "tool_use");
  EXPECT_TRUE(end["delta"]["stop_sequence"].is_null());
  EXPECT_EQ(end["usage"]["input_tokens"], 1);
  EXPECT_EQ(end["usage"]["cache_creation_input_tokens"], 5);
  EXPECT_EQ(end["usage"]["output_tokens"], 3);
  EXPECT_EQ(events.back(), FormatJson({{"type", "message_stop"}}));
}

TEST(MessagesFormat, WholeAnswerHasBlocksOfStream) {
  WholeAnswer answer;
  answer.read.text = "a\"b";
  answer.read.calls = {{"f", "{\"x\":1}"}, {"g", "{}"}};
  answer.end = AnswerEnd::kToolCalls;
  const FormatJson whole = Whole(answer);
  MessagesFormat format = Format();
  std::string out;
  format.AddPieces(0, {{CallPiece::kText, 0, "a\"b"}, {CallPiece::kName, 0, "f"}}, nullptr, &out);
  const std::vector<FormatJson> events = Events(out);
  EXPECT_EQ(whole["content"][0],
            FormatJson({{"type", "text"}, {"text", "a\"b"}, {"citations", nullptr}}));
  EXPECT_EQ(whole["content"][1]["id"], events.back()["content_block"]["id"]);
  EXPECT_THAT(whole["content"][1]["id"].get<std::string>(), testing::StartsWith("toolu_"));
  EXPECT_NE(whole["content"][1]["id"], whole["content"][2]["id"]);
  EXPECT_EQ(whole["content"][1]["input"], FormatJson({{"x", 1}}));
  EXPECT_EQ(whole["content"][2]["input"], FormatJson::object());
  EXPECT_EQ(whole["type"], "message");
  EXPECT_EQ(whole["role"], "assistant");
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_EQ(whole["usage"]["input_tokens"], 1);
  EXPECT_EQ(whole["usage"]["cache_creation_input_tokens"], 5);
  EXPECT_EQ(whole["usage"]["cache_read_input_tokens"], 4);
}

TEST(MessagesFormat, AnswerEndsBecomeStopReasons) {
  const std::pair<AnswerEnd, const char*> ends[] = {{AnswerEnd::kStop, "end_turn"},
                                                    {AnswerEnd::kStopString, "stop_sequence"},
                                                    {AnswerEnd::kLength, "max_tokens"},
                                                    {AnswerEnd::kToolCalls, "tool_use"}};
  for (const auto& [end, reason] : ends) {
    WholeAnswer answer;
    answer.end = end;
    answer.stop_string = end == AnswerEnd::kStopString ? "x" : "";
    const FormatJson whole = Whole(answer);
    EXPECT_EQ(whole["stop_reason"], reason);
    EXPECT_EQ(whole["stop_sequence"], end == AnswerEnd::kStopString ? FormatJson("x") : nullptr);
    MessagesFormat format = Format();
    std::string out;
    format.EndAnswer(0, end, answer.stop_string, &out);
    format.End(Usage(5, 3), &out);
    const std::vector<FormatJson> events = Events(out);
    EXPECT_EQ(events[events.size() - 2]["delta"]["stop_reason"], whole["stop_reason"]);
    EXPECT_EQ(events[events.size() - 2]["delta"]["stop_sequence"], whole["stop_sequence"]);
    EXPECT_EQ(events[events.size() - 2]["usage"], whole["usage"]);
  }
}

TEST(MessagesFormat, EmptyAnswerHasEmptyText) {
  const FormatJson text = {{"type", "text"}, {"text", ""}, {"citations", nullptr}};
  EXPECT_EQ(Whole(WholeAnswer())["content"], FormatJson::array({text}));
  MessagesFormat format = Format();
  std::string out;
  format.EndAnswer(0, AnswerEnd::kStop, "", &out);
  const std::vector<FormatJson> events = Events(out);
  EXPECT_THAT(Blocks(events), ElementsAre("start 0 text", "stop 0"));
  EXPECT_EQ(events[0]["content_block"], text);
}

TEST(MessagesFormat, StoredPromptHasNoContent) {
  const FormatJson whole = Whole(WholeAnswer(), Format(/*prewarm=*/true));
  EXPECT_EQ(whole["content"], FormatJson::array());
  EXPECT_EQ(whole["stop_reason"], "max_tokens");
}

TEST(MessagesFormat, TruncatedCallIsLeftOut) {
  WholeAnswer answer;
  answer.read.calls = {{"f", "{\"x\": 1}"}, {"g", "{\"x\": "}};
  answer.read.is_cut = true;
  answer.end = AnswerEnd::kLength;
  FormatJson whole = Whole(answer);
  ASSERT_EQ(whole["content"].size(), 1u);
  EXPECT_EQ(whole["content"][0]["name"], "f");
  answer.read.calls.erase(answer.read.calls.begin());
  whole = Whole(answer);
  ASSERT_EQ(whole["content"].size(), 1u);
  EXPECT_EQ(whole["content"][0]["type"], "text");
}

TEST(MessagesFormat, InvalidArgumentsBecomeEmptyInput) {
  WholeAnswer answer;
  answer.read.calls = {{"f", "{oops}"}};
  EXPECT_EQ(Whole(answer)["content"][0]["input"], FormatJson::object());
}

// No double holds these numbers, but a schema allows them.
TEST(MessagesFormat, LargeNumbersKeepDigits) {
  WholeAnswer answer;
  const std::string arguments =
      "{\"n\": [1e400, -" + std::string(400, '9') + "], \"s\": \"\\\"1e\"}";
  answer.read.calls = {{"f", arguments}};
  HeldText out;
  MessagesFormat format = Format();
  format.WriteAnswer(0, answer, &out);
  EXPECT_TRUE(absl::StrContains(out.Take(), "\"input\":" + arguments + "}"));
  answer.read.calls = {{"f", "{\"n\": 1e400,}"}};
  EXPECT_EQ(Whole(answer)["content"][0]["input"], FormatJson::object());
}

TEST(MessagesFormat, CallsHaveNoStopSequence) {
  WholeAnswer answer;
  answer.read.calls = {{"f", "{}"}};
  answer.end = AnswerEnd::kToolCalls;
  answer.stop_string = "]";
  EXPECT_EQ(Whole(answer)["stop_sequence"], nullptr);
}

TEST(MessagesFormat, ErrorsNameStopSequences) {
  for (const char* const path : {"stop", "stop[3]", "stop_sequences", "stop_sequences[3]"}) {
    const absl::Status status = absl::InvalidArgumentError(absl::StrCat(path, ": must be short"));
    const std::string message =
        FormatJson::parse(MessagesErrorBody(status))["error"]["message"].get<std::string>();
    EXPECT_EQ(message, absl::StrCat("stop_sequences", absl::EndsWith(path, "]") ? "[3]" : "",
                                    ": must be short"));
  }
}

TEST(MessagesFormat, UsageSumsToPromptTokens) {
  for (const uint64_t written : {0, 5, 6}) {
    HeldText out;
    MessagesFormat format = Format();
    format.EndWhole(Usage(written, 1), &out);
    const std::string text = out.Take();
    const FormatJson usage = FormatJson::parse("{\"content\":[" + text, nullptr, false)["usage"];
    EXPECT_EQ(usage["input_tokens"].get<int>() + usage["cache_creation_input_tokens"].get<int>() +
                  usage["cache_read_input_tokens"].get<int>(),
              10);
    EXPECT_EQ(usage["cache_creation_input_tokens"], written);
    EXPECT_FALSE(usage.contains("hearth_cache"));
  }
  AnswerUsage explained = Usage(0, 0);
  explained.cache = "[{\"tokens\":4}]";
  MessagesFormat format = Format();
  std::string out;
  format.End(explained, &out);
  EXPECT_EQ(Events(out)[0]["usage"]["hearth_cache"][0]["tokens"], 4);
}

TEST(MessagesFormat, ErrorsHaveAnthropicForm) {
  const std::pair<absl::Status, const char*> errors[] = {
      {absl::InvalidArgumentError("a: b"), "invalid_request_error"},
      {absl::UnauthenticatedError("a"), "authentication_error"},
      {absl::PermissionDeniedError("a"), "permission_error"},
      {absl::NotFoundError("a"), "not_found_error"},
      {absl::ResourceExhaustedError("a"), "rate_limit_error"},
      {absl::UnavailableError("a"), "overloaded_error"},
      {absl::InternalError("a"), "api_error"}};
  for (const auto& [status, type] : errors) {
    const FormatJson body = FormatJson::parse(MessagesErrorBody(status));
    EXPECT_EQ(body["type"], "error");
    EXPECT_EQ(body["error"]["type"], type);
    EXPECT_EQ(body["error"]["message"], std::string(status.message()));
    std::string out;
    Format().Fail(status, &out);
    EXPECT_EQ(out, absl::StrCat("event: error\ndata: ", body.dump(), "\n\n"));
  }
  EXPECT_EQ(FormatJson::parse(MessagesErrorBody(413, "a"))["error"]["type"], "request_too_large");
}

// Claude Code reads both numbers from the message.
TEST(MessagesFormat, LongPromptErrorHasBothNumbers) {
  const auto message = [](const absl::Status& status) {
    return FormatJson::parse(MessagesErrorBody(status))["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(message(PromptTooLong("chat.messages", 100, 120)),
            "prompt is too long: 120 tokens > 100 maximum");
  EXPECT_EQ(message(PromptTooLong("max_new_tokens", 100, 100, /*free_tokens=*/1)),
            "prompt is too long: 100 tokens > 99 maximum");
  EXPECT_EQ(message(absl::InvalidArgumentError("max_new_tokens: must be at least 1")),
            "max_tokens: must be at least 1");
}

TEST(MessagesFormat, SilentStreamGetsPing) {
  EXPECT_EQ(Format().Waiting(), "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

}  // namespace
}  // namespace hearth
