#include "services/serving/json_value.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>

namespace hearth {
namespace {

TEST(JsonTest, FieldsKeepInsertionOrder) {
  Json json;
  json["zebra"] = 1;
  json["ant"] = 2;
  json["zebra"] = 3;
  EXPECT_EQ(JsonLine(json), R"({"zebra":3,"ant":2})");
}

TEST(JsonTest, NestsObjectsAndArrays) {
  Json json = {{"list", std::vector<uint32_t>{7, 8}}, {"words", std::vector<std::string>{"a"}}};
  json["inner"] = {{"yes", true}, {"no", false}, {"nothing", Json()}};
  json["counts"]["first"] = 1;
  json["items"].push_back({{"id", 3}});
  json["items"].push_back("text");
  EXPECT_EQ(JsonLine(json),
            R"({"list":[7,8],"words":["a"],"inner":{"yes":true,"no":false,"nothing":null},)"
            R"("counts":{"first":1},"items":[{"id":3},"text"]})");
}

TEST(JsonTest, StringPairBecomesField) {
  EXPECT_EQ(JsonLine(Json{{"a", "b"}}), R"({"a":"b"})");
  EXPECT_EQ(JsonLine(Json{{"a", "b"}, {"c", "d"}}), R"({"a":"b","c":"d"})");
}

TEST(JsonTest, EmptyValuesAreWritten) {
  EXPECT_EQ(JsonLine(Json()), "null");
  EXPECT_EQ(JsonLine(Json::array()), "[]");
  EXPECT_EQ(JsonLine(Json::object()), "{}");
  EXPECT_EQ(JsonLine(std::vector<uint32_t>()), "[]");
  EXPECT_EQ(JsonLine(""), R"("")");
}

TEST(JsonTest, IntegersAreExact) {
  EXPECT_EQ(JsonLine(std::numeric_limits<uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(JsonLine(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(JsonLine(uint32_t{4294967295}), "4294967295");
  EXPECT_EQ(JsonLine(-1), "-1");
}

TEST(JsonTest, FractionsRoundTripShortest) {
  EXPECT_EQ(JsonLine(0.1), "0.1");
  EXPECT_EQ(JsonLine(1.0), "1.0");
  EXPECT_EQ(JsonLine(-0.0), "-0.0");
  EXPECT_EQ(JsonLine(1e300), "1e+300");
  EXPECT_EQ(JsonLine(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(JsonLine(0.1f), "0.10000000149011612");
}

TEST(JsonTest, NonFiniteNumbersAreNull) {
  EXPECT_EQ(JsonLine(std::nan("")), "null");
  EXPECT_EQ(JsonLine(std::numeric_limits<double>::infinity()), "null");
}

TEST(JsonTest, SpecialCharactersAreEscaped) {
  EXPECT_EQ(JsonLine("say \"hi\"\\ \n\t\x01/"), R"("say \"hi\"\\ \n\t\u0001/")");
  EXPECT_EQ(JsonLine(std::string("a\0b", 3)), R"("a\u0000b")");
  EXPECT_EQ(JsonLine(Json{{"a \"name\"", 1}}), R"({"a \"name\"":1})");
  EXPECT_EQ(JsonLine("gr\xC3\xBC\xC3\x9F"), "\"gr\xC3\xBC\xC3\x9F\"") << "UTF-8 stays as it is";
}

TEST(JsonTest, InvalidUtf8IsReplaced) {
  EXPECT_EQ(JsonLine("a\xFFz"), "\"a\xEF\xBF\xBDz\"");
  EXPECT_EQ(JsonLine("cut \xC3"), "\"cut \xEF\xBF\xBD\"");
  EXPECT_EQ(JsonLine(Json{{"n\xFF", 1}}), "{\"n\xEF\xBF\xBD\":1}");
}

TEST(JsonTest, StreamOutputIsJson) {
  std::ostringstream out;
  out << Json{{"a", 1}};
  EXPECT_EQ(out.str(), R"({"a":1})");
}

TEST(JsonTest, NumbersAreEqualByValue) {
  EXPECT_EQ(Json(5), Json(uint64_t{5}));
  EXPECT_EQ(Json(5), Json(5.0));
  EXPECT_NE(Json(-1), Json(uint64_t{1}));
  EXPECT_NE(Json(-1), Json(uint64_t{4294967295}));
  EXPECT_NE(Json(-1), Json(std::numeric_limits<uint64_t>::max() - 1));
  EXPECT_NE(Json(1), Json(true));
  EXPECT_NE(Json(1), Json("1"));
  EXPECT_NE(Json(0), Json());
  EXPECT_EQ((Json{{"a", 1}}), (Json{{"a", 1u}}));
  EXPECT_NE((Json{{"a", 1}}), (Json{{"b", 1}}));
}

TEST(JsonTest, MissingFieldIsNull) {
  const Json json = {{"a", 1}};
  EXPECT_EQ(json.value("b", Json()), Json());
  EXPECT_FALSE(json.contains("b"));
  EXPECT_EQ(json.at("a"), 1);
  EXPECT_EQ(json.size(), 1u);
}

TEST(JsonTest, CopyIsIndependent) {
  Json json = {{"list", Json::array()}};
  const Json before = json;
  json["list"].push_back(1);
  EXPECT_EQ(before["list"].size(), 0u);
  EXPECT_EQ(json["list"].at(0), 1);
}

}  // namespace
}  // namespace hearth
