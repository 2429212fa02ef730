#include "services/serving/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

JsonDocument Parse(const std::string& text) {
  auto parsed = JsonDocument::Parse(text, "the body");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *std::move(parsed);
}

std::string ErrorOf(const std::string& text, const JsonLimits& limits = {}) {
  const auto parsed = JsonDocument::Parse(text, "the body", limits);
  EXPECT_FALSE(parsed.ok()) << text.substr(0, 80);
  return std::string(parsed.status().message());
}

std::string Nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

std::string ObjectOf(size_t keys) {
  std::vector<std::string> fields;
  for (size_t i = 0; i < keys; ++i) fields.push_back(absl::StrCat("\"k", i, "\":1"));
  return absl::StrCat("{", absl::StrJoin(fields, ","), "}");
}

TEST(JsonReader, FieldsKeepTheirOrder) {
  const JsonDocument document = Parse(R"({"z": 1, "a": [true, null, "x"], "m": {"n": -2}})");
  std::vector<std::string> names;
  for (const JsonValue field : document.root().fields()) names.emplace_back(field.name());
  EXPECT_EQ(names, (std::vector<std::string>{"z", "a", "m"}));
  EXPECT_EQ(document.root().Find("a")->size(), 3u);
  EXPECT_EQ(document.root().Find("m")->Find("n")->Number(-5, 5).value(), -2);
}

TEST(JsonReader, LongPathIsShortenedInError) {
  std::string text = R"({"a": 1, "a": 1})";
  for (int i = 0; i < 60; ++i)
    text = absl::StrCat("{\"", std::string(64, 'k'), i, "\":", text, "}");
  EXPECT_THAT(ErrorOf(text), SizeIs(::testing::Lt(600u)));
}

TEST(JsonReader, GettersAcceptOnlyTheirType) {
  const JsonDocument document =
      Parse(R"([null, true, 7, -7, 2.0, 1.5, 1e300, "7", [], {}, 18446744073709551615])");
  std::vector<JsonValue> values;
  for (const JsonValue value : document.root().elements()) values.push_back(value);
  const auto taken = [&](auto get) {
    std::string which;
    for (const JsonValue value : values) which += get(value).ok() ? '1' : '0';
    return which;
  };
  EXPECT_EQ(taken([](JsonValue v) { return v.Bool(); }), "01000000000");
  EXPECT_EQ(taken([](JsonValue v) { return v.Text(); }), "00000001000");
  EXPECT_EQ(taken([](JsonValue v) { return v.Count(0, 9); }), "00101000000");
  EXPECT_EQ(taken([](JsonValue v) { return v.Count(0, UINT64_MAX); }), "00101000001");
  EXPECT_EQ(taken([](JsonValue v) { return v.Number(-9, 9); }), "00111100000");
  EXPECT_EQ(taken([](JsonValue v) { return v.CheckObject(); }), "00000000010");
  EXPECT_EQ(taken([](JsonValue v) { return v.Ids(); }), "00000000100");
}

TEST(JsonReader, ErrorsNamePathAndValue) {
  const JsonDocument document =
      Parse(R"({"x": [1], "messages": [{"role": "user"}, {"role": 5, "odd key": [[{}, 0.5]]}]})");
  JsonValue second = *document.root().Find("messages")->elements().begin();
  for (const JsonValue message : document.root().Find("messages")->elements()) second = message;
  EXPECT_EQ(second.Find("role")->Text().status().message(),
            "messages[1].role: must be a string; got 5");
  EXPECT_EQ(second.Find("odd key")->Bool().status().message(),
            R"(messages[1]["odd key"]: must be true or false; got [[{},0.5]])");
  EXPECT_THAT(std::string(document.root().Bool().status().message()),
              StartsWith("the body: must be true or false; got {\"x\":[1],"));
}

TEST(JsonReader, QuotesAtMost200Bytes) {
  const std::string umlauts = absl::StrJoin(std::vector<std::string>(3000, "\xC3\xBC"), "");
  for (const std::string& text : {absl::StrCat("{\"n\": \"", umlauts, "\"}"),
                                  absl::StrCat("{\"n\": [[\"a\", \"", umlauts, "\"]]}"),
                                  absl::StrCat("{\"n\": [", std::string(9000, ' '), "1",
                                               absl::StrJoin(std::vector<int>(9000, 5), ","), "]}"),
                                  absl::StrCat("{\"n\": {\"", umlauts, "\": 1}}")}) {
    const JsonDocument document = Parse(text);
    const std::string message(document.root().Find("n")->Bool().status().message());
    EXPECT_THAT(message, SizeIs(testing::Le(250))) << message;
    EXPECT_THAT(message, EndsWith("..."));
    EXPECT_EQ(message.find("\xEF\xBF\xBD"), message.npos) << "cut inside a character";
  }
  EXPECT_EQ(Quoted("short"), "\"short\"");
  EXPECT_EQ(Quoted(std::string(199, 'a') + "\xC3\xBC"), "\"" + std::string(199, 'a') + "\"...");
}

TEST(JsonReader, ErrorsHaveByteOffset) {
  EXPECT_THAT(ErrorOf(R"({"a": tru})"), StartsWith("the body: must be JSON; at byte 10: "));
  EXPECT_THAT(ErrorOf("{"), HasSubstr("at byte 1: "));
  EXPECT_THAT(ErrorOf("{} x"), HasSubstr("at byte 4: "));
  EXPECT_THAT(ErrorOf("[1e999]"), HasSubstr("a number is out of range"));
  EXPECT_THAT(ErrorOf("[\"\xff\"]"), HasSubstr("UTF-8"));
  EXPECT_THAT(ErrorOf("[" + std::string(1 << 20, 'x')), SizeIs(testing::Le(300)));
  EXPECT_THAT(ErrorOf("[" + std::string(1 << 20, '9') + "x"), SizeIs(testing::Le(300)));
}

TEST(JsonReader, DepthIsLimited) {
  EXPECT_TRUE(JsonDocument::Parse(Nested(64), "it").ok());
  EXPECT_EQ(ErrorOf(Nested(65)),
            "the body: must have at most 64 nested levels; got more at byte 65");
  EXPECT_THAT(ErrorOf(std::string(1 << 20, '[')), HasSubstr("at byte 65"));
}

TEST(JsonReader, ObjectKeysAreLimited) {
  EXPECT_TRUE(JsonDocument::Parse(ObjectOf(1024), "it").ok());
  EXPECT_THAT(ErrorOf(ObjectOf(1025)),
              StartsWith("the body: must have at most 1024 keys; got more, at byte "));
  EXPECT_THAT(ErrorOf(absl::StrCat("{\"a\":[{\"b\":", ObjectOf(1025), "}]}")),
              StartsWith("a[0].b: must have at most 1024 keys"));
}

TEST(JsonReader, DuplicateKeyIsRefused) {
  EXPECT_THAT(ErrorOf(R"({"a": 1, "b": {"c": 1, "d": [{"c": 2}], "c": 3}})"),
              StartsWith("b: must have each key once; got \"c\" twice, at byte "));
  EXPECT_THAT(ErrorOf(R"({"\u0061": 1, "a": 2})"), HasSubstr("\"a\" twice"));
  EXPECT_TRUE(JsonDocument::Parse(R"({"a": {"a": [{"a": 1}]}})", "it").ok());
}

TEST(JsonReader, MemoryIsRequestedBeforeAllocation) {
  const std::string many = "[" + absl::StrJoin(std::vector<int>(1 << 18, 1), ",") + "]";
  uint64_t held = 0;
  JsonLimits limits;
  limits.hold = [&](uint64_t bytes) {
    held += bytes;
    return true;
  };
  const auto parsed = JsonDocument::Parse(many, "it", limits);
  ASSERT_TRUE(parsed.ok());
  EXPECT_GE(held + sizeof(std::string), parsed->bytes());
  EXPECT_LE(held, 9 * many.size() + 1024);
  limits.hold = [&](uint64_t bytes) { return (held += bytes) <= 1 << 20; };
  held = 0;
  EXPECT_EQ(JsonDocument::Parse(many, "it", limits).status().code(),
            absl::StatusCode::kUnavailable);
  const std::string text = "\"" + std::string(2 << 20, 'a') + "\"";
  held = 0;
  EXPECT_EQ(JsonDocument::Parse(text, "it", limits).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(JsonReader, FieldsKeepTheFirstError) {
  const JsonDocument document = Parse(R"({"flag": 1, "count": "x", "text": "abc", "none": null})");
  JsonFields fields(document.root());
  bool flag = true;
  uint64_t count = 3;
  std::string text;
  EXPECT_FALSE(fields.Bool("none", &flag) || fields.Bool("absent", &flag));
  EXPECT_TRUE(fields.Text("text", &text));
  EXPECT_EQ(text, "abc");
  EXPECT_TRUE(fields.status().ok());
  EXPECT_FALSE(fields.Bool("flag", &flag));
  EXPECT_FALSE(fields.Count("count", 0, 9, &count));
  EXPECT_FALSE(fields.Text("text", &text));
  EXPECT_EQ(fields.status().message(), "flag: must be true or false; got 1");
  EXPECT_TRUE(flag && count == 3);
  JsonFields other(document.root());
  EXPECT_FALSE(other.Text("text", &text, 2));
  EXPECT_EQ(other.status().message(), "text: must be a string of at most 2 bytes; got \"abc\"");
  EXPECT_FALSE(JsonFields(*document.root().Find("flag")).status().ok());
}

TEST(JsonReader, IntegersAndFloatsCompareByValue) {
  const auto document = JsonDocument::Parse("[-1, 0, 1, 1.0, 0.5, \"1\", true]", "it");
  std::string equal_to_one, equal_to_minus_one;
  for (const JsonValue value : document->root().elements()) {
    equal_to_one += value.IsNumber(1) ? "1" : "0";
    equal_to_minus_one += value.IsNumber(-1) ? "1" : "0";
  }
  EXPECT_EQ(equal_to_one, "0011000");
  EXPECT_EQ(equal_to_minus_one, "1000000");
}

TEST(JsonFields, AbsentValuesAreNotRead) {
  const auto document = JsonDocument::Parse(R"({"a": -1, "b": -1, "c": 5})", "it");
  JsonFields fields(
      document->root(),
      [](uint64_t place, absl::string_view name, JsonValue value) {
        return place == 7 && name == "a" && value.IsNumber(-1);
      },
      /*place=*/7);
  uint64_t count = 3;
  EXPECT_FALSE(fields.Count("a", 0, 9, &count));
  EXPECT_TRUE(fields.status().ok());
  EXPECT_EQ(count, 3u);
  EXPECT_TRUE(fields.Count("c", 0, 9, &count));
  EXPECT_FALSE(fields.Count("b", 0, 9, &count));
  EXPECT_FALSE(fields.status().ok());
}

}  // namespace
}  // namespace hearth
