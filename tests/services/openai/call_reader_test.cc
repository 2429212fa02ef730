#include "services/openai/call_reader.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

const CallRules kRules = {{"get_weather", "get", "f-1"}, true};

// Writes pieces as text: "<CALL NAME>" for a name, "=" before the arguments of a call, and "|"
// before text that follows a call.
std::string Shown(const std::vector<CallPiece>& pieces) {
  std::string shown;
  CallPiece::Kind last = CallPiece::kText;
  size_t call = 0;
  for (const CallPiece& piece : pieces) {
    EXPECT_FALSE(piece.text.empty());
    if (piece.kind == CallPiece::kName) {
      absl::StrAppend(&shown, "<", piece.call, " ", piece.text, ">");
    } else if (piece.kind != last || piece.call != call) {
      shown += piece.kind == CallPiece::kText ? "|" : "=";
    }
    if (piece.kind != CallPiece::kName) shown += piece.text;
    last = piece.kind;
    call = piece.call;
  }
  return shown;
}

// Returns all pieces of a text that is passed in parts.
std::vector<CallPiece> Read(const CallRules& rules, const std::vector<std::string>& parts) {
  CallReader reader(rules);
  std::vector<CallPiece> pieces;
  for (const std::string& part : parts) reader.Push(part, &pieces);
  reader.Finish(&pieces);
  return pieces;
}

std::string Whole(const std::string& text, const CallRules& rules = kRules) {
  return Shown(Read(rules, {text}));
}

// A call in the form of a model's own template.
TEST(CallReader, PrefixAndKeyAreRead) {
  const CallRules rules{{"get"}, /*parallel=*/false, "arguments", "<tool_call>\n"};
  const std::string call = R"({"name": "get", "arguments": {"a": 1}})";
  const std::pair<std::string, const char*> answers[] = {
      {call, R"(<0 get>={"a": 1})"},
      {"<tool_call>\n" + call, R"(<0 get>={"a": 1})"},
      {"Look.\n<tool_call>\n" + call + "\n", "Look.\n<0 get>={\"a\": 1}"},
      {"<tool_call>\nLook.", "<tool_call>\nLook."},
      {"<tool_box>", "<tool_box>"},
      {"<tool_call", "<tool_call"},
      {R"({"name": "get", "parameters": {}})", R"({"name": "get", "parameters": {}})"}};
  for (const auto& [answer, want] : answers) EXPECT_EQ(Whole(answer, rules), want) << answer;
}

TEST(CallReader, CallsAtLineStartAreFound) {
  const std::pair<const char*, const char*> answers[] = {
      {R"({"name": "get_weather", "parameters": {"city": "Paris"}})",
       R"(<0 get_weather>={"city": "Paris"})"},
      {R"({"name":"get","parameters":{}})", "<0 get>={}"},
      {"\n {\"name\": \"get\", \"parameters\": {}}\n", "<0 get>={}"},
      {R"([{"name": "get", "parameters": {"a": [1, {}]}}, {"name": "f-1", "parameters": {}}])",
       R"(<0 get>={"a": [1, {}]}<1 f-1>={})"},
      {"Let me look.\n\n{\"name\": \"get\", \"parameters\": {}}", "Let me look.\n\n<0 get>={}"},
      {"Look:\n```json\n{\"name\": \"get\", \"parameters\": {}}\n```\n", "Look:\n<0 get>={}"},
      {"```\n[{\"name\": \"get\", \"parameters\": {}}]\n```", "<0 get>={}"},
      {"```tool_call \n  {\"name\": \"get\", \"parameters\": {}}\n```", "<0 get>={}"},
      {R"({"name": "get", "parameters": {"a": "} \" \\"}})", R"(<0 get>={"a": "} \" \\"})"},
      {"{\"name\": \"get\", \"parameters\": {}}\n{\"name\": \"get\", \"parameters\": {}}",
       "<0 get>={}<1 get>={}"},
      {"{\"name\": \"get\", \"parameters\": {}}\nDone.", "<0 get>={}|\nDone."},
      {"```\n{\"name\": \"get\", \"parameters\": {}}\n```\nDone.", "<0 get>={}|\nDone."},
      {"```\n{\"name\": \"get\", \"parameters\": {}}\n```\n```json\n"
       "{\"name\": \"get\", \"parameters\": {}}\n```",
       "<0 get>={}<1 get>={}"}};
  for (const auto& [answer, want] : answers) EXPECT_EQ(Whole(answer), want) << answer;
}

TEST(CallReader, OtherTextStaysUnchanged) {
  for (const std::string answer : {"",
                                   " ",
                                   "Hello.",
                                   "\n\n  Hello,\n world. ",
                                   "a {\"name\": \"get\", \"parameters\": {}}",
                                   "{\"name\": \"Ada\", \"age\": 36}",
                                   "{\"name\": \"get\"}",
                                   "{\"name\": \"get",
                                   "{\"name\": \"getter\", \"parameters\": {}}",
                                   "{\"name\": \"get\", \"parameters\": [1]}",
                                   "[{\"name\": \"get\"",
                                   "[1, 2]",
                                   "```\n```\n",
                                   "```json\n{\"a\": 1}\n```",
                                   "```py x\nb\n```",
                                   "`code`\n``\n````\n",
                                   "```json\n\n{\"name\": 1}",
                                   "{\n\"name\": \"get\", \"parameters\": {}}",
                                   "- {\"name\":",
                                   "{\"name\": \"\", \"parameters\": {}}",
                                   "```json {\"name\"\n"}) {
    EXPECT_EQ(Whole(answer), answer.empty() ? "" : answer) << answer;
    EXPECT_EQ(ReadCalls(kRules, answer).text, answer);
  }
}

TEST(CallReader, TextWithoutToolsIsNotHeldBack) {
  CallReader reader(CallRules{});
  std::vector<CallPiece> pieces;
  reader.Push("{\"name\": \"get\", \"parameters\": {}}", &pieces);
  EXPECT_EQ(Shown(pieces), "{\"name\": \"get\", \"parameters\": {}}");
}

TEST(CallReader, TruncatedCallsKeepTheirBeginning) {
  const std::string call = R"({"name": "get", "parameters": {"a": "b)";
  EXPECT_EQ(Whole(call), R"(<0 get>={"a": "b)");
  EXPECT_EQ(Whole(call + "\"}"), R"(<0 get>={"a": "b"})");
  EXPECT_EQ(Whole("[" + call + "\"}}, {\"name\": \"g"), R"(<0 get>={"a": "b"}| {"name": "g)");
}

TEST(CallReader, BrokenCallsContinueAsText) {
  const std::string call = R"({"name": "get", "parameters": {}x})";
  EXPECT_EQ(Whole(call), "<0 get>={}|x}");
  EXPECT_EQ(Whole(R"([{"name": "get", "parameters": {}}; more)"), "<0 get>={}|; more");
}

TEST(CallReader, WithoutParallelLaterCallsAreText) {
  const CallRules one = {{"get"}, false};
  const std::string call = R"({"name": "get", "parameters": {}})";
  EXPECT_EQ(Whole(call, one), "<0 get>={}");
  EXPECT_EQ(Whole("[" + call + "]", one), "[" + call + "]");
  EXPECT_EQ(Whole(call + "\n" + call, one), "<0 get>={}|\n" + call);
}

TEST(CallReader, TextAfterCallStaysUnchanged) {
  const std::string call = R"({"name": "get", "parameters": {}})";
  for (const std::string text :
       {" `code`", "\n`code` is it.", "\n\n  ```js\nx\n```", "```x", "\n`` {", "\n[1]", "\n ```\n.",
        "\n{\"name\": \"other\"}", "\n```json x\n"}) {
    EXPECT_EQ(Whole(call + text), "<0 get>={}|" + text);
  }
  for (const std::string dropped : {"", " ", "\n", "\n```\n", " ` "}) {
    EXPECT_EQ(Whole(call + dropped), "<0 get>={}");
    EXPECT_EQ(Whole(call + dropped + "\n" + call), "<0 get>={}<1 get>={}");
  }
  EXPECT_EQ(Whole(R"({"name": "get", "parameters": {} x})"), "<0 get>={}| x}");
}

TEST(CallReader, OnlyIncompleteArgumentsCountAsTruncated) {
  const std::string call = R"({"name": "get", "parameters": {"a": "b"}})";
  EXPECT_FALSE(ReadCalls(kRules, call).is_cut);
  EXPECT_FALSE(ReadCalls(kRules, call.substr(0, call.size() - 1)).is_cut);
  EXPECT_TRUE(ReadCalls(kRules, call.substr(0, call.size() - 2)).is_cut);
  EXPECT_TRUE(ReadCalls(kRules, call + "\n" + call.substr(0, call.size() - 5)).is_cut);
  EXPECT_FALSE(ReadCalls(kRules, "text").is_cut);
}

TEST(CallReader, OnlyPossibleCallsAreHeldBack) {
  // Pairs of a text, and the pieces after Push, before Finish.
  const std::pair<const char*, const char*> texts[] = {
      {"Hello.\n", "Hello.\n"},
      {"a\n  ", "a\n  "},
      {"a {\"name\":", "a {\"name\":"},
      {"a\n{\"na", "a\n"},
      {"a\n{\"nb", "a\n{\"nb"},
      {"a\n{\"name\": \"gex", "a\n{\"name\": \"gex"},
      {"a\n```", "a\n"},
      {"a\n```js\nx", "a\n```js\nx"},
      {"a\n``x", "a\n``x"},
      {"a\n{\"name\": \"get\", \"parameters\": {\"k", "a\n<0 get>={\"k"}};
  for (const auto& [text, want] : texts) {
    CallReader reader(kRules);
    std::vector<CallPiece> pieces;
    reader.Push(text, &pieces);
    EXPECT_EQ(Shown(pieces), want) << text;
  }
}

// Returns random parts of calls, fences, lists and text, joined.
std::string RandomAnswer(std::mt19937* random) {
  const std::vector<std::string> parts = {
      "{\"name\": \"get\", \"parameters\": {\"a\": \"}\\\"\"}}",
      "[{\"name\": \"get_weather\", \"parameters\": {}}, {\"name\": \"f-1\", \"parameters\": {}}]",
      "{\"name\":\"get\",\"parameters\":{}}",
      "{\"name\": \"get\", \"para",
      "{\"name\": \"unknown\"}",
      "```json\n",
      "```\n",
      "\n```",
      "\n",
      " ",
      "\n\n",
      "Hello.",
      "{",
      "[",
      "}",
      "]",
      ",",
      "\"",
      "`",
      "\xC3\xA9",
      "{\"name\":",
      "[{\"name\":",
      "get",
      "\\",
      ": "};
  std::string answer;
  const size_t count = 1 + (*random)() % 12;
  for (size_t i = 0; i < count; ++i) answer += parts[(*random)() % parts.size()];
  return answer;
}

TEST(CallReader, SplitTextGivesSamePieces) {
  std::mt19937 random(57);
  size_t calls = 0;
  for (int i = 0; i < 400; ++i) {
    const std::string answer = RandomAnswer(&random);
    const std::string whole = Whole(answer);
    calls += ReadCalls(kRules, answer).calls.size();
    for (size_t cut = 0; cut <= answer.size(); ++cut) {
      EXPECT_EQ(Shown(Read(kRules, {answer.substr(0, cut), answer.substr(cut)})), whole) << answer;
    }
    std::vector<std::string> bytes;
    for (const char c : answer) bytes.emplace_back(1, c);
    EXPECT_EQ(Shown(Read(kRules, bytes)), whole) << answer;
  }
  EXPECT_GT(calls, 100u);
}

// If the reader took quadratic time, these texts of 1 MiB would exceed the time limit of the test.
TEST(CallReader, LongTextsWithoutCallsStayUnchanged) {
  const std::string spaces(1 << 20, ' '), ticks(1 << 20, '`'), lines(1 << 20, '\n');
  for (const std::string& text : {spaces, ticks, lines, "{\"name\":" + spaces}) {
    EXPECT_EQ(ReadCalls(kRules, text).text, text);
  }
}

TEST(CallId, IdDependsOnRequestAnswerAndCall) {
  EXPECT_EQ(CallId("r", 2, 0, 1), CallId("r", 2, 0, 1));
  EXPECT_EQ(CallId("r", 2, 0, 1).size(), 29u);
  EXPECT_NE(CallId("r", 2, 0, 1), CallId("r", 2, 1, 0));
  EXPECT_NE(CallId("r", 2, 0, 1), CallId("s", 2, 0, 1));
  EXPECT_NE(CallId("r", 2, 0, 1), CallId("r", 3, 0, 1)) << "a later request of the same chat";
}

}  // namespace
}  // namespace hearth
