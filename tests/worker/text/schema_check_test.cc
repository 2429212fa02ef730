// CheckSchema: the limits of a schema, the path in a refusal, and the keywords of the result.
#include "worker/text/schema_check.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

std::string NoError(const std::string& /*schema*/) { return ""; }

std::string Checked(const std::string& schema, bool lenient = false) {
  const auto checked = CheckSchema(schema, lenient, NoError);
  return checked.ok() ? *checked : std::string(checked.status().message());
}

// Returns make(0) to make(count - 1), separated by commas.
template <typename Make>
std::string List(size_t count, Make make) {
  std::string list;
  for (size_t i = 0; i < count; ++i) absl::StrAppend(&list, i == 0 ? "" : ",", make(i));
  return list;
}

std::string Properties(size_t optional, size_t required) {
  const auto name = [](size_t i) { return absl::StrCat("\"p", i, "\""); };
  return absl::StrCat("{\"required\":[", List(required, name), "],\"properties\":{",
                      List(optional + required, [&](size_t i) { return name(i) + ":{}"; }), "}}");
}

TEST(SchemaCheckTest, AnnotationsAreDropped) {
  const char* const annotated =
      R"({"title": "T", "type": "object", "description": "D", "properties": {"description": )"
      R"({"type": "string", "description": "of it", "default": "x"}}, "examples": [1], )"
      R"("x-order": 3, "$comment": "c", "x-guidance": {"lenient": true}})";
  EXPECT_EQ(Checked(annotated),
            R"({"type":"object","properties":{"description":{"type":"string"}},)"
            R"("additionalProperties":false})");
  EXPECT_EQ(Checked("true"), "{}");
  EXPECT_EQ(Checked(R"({"maxItems": 2.0})"), R"({"maxItems":2})");
  EXPECT_EQ(Checked(R"({"const": "\b\t\n\f\r"})"), R"({"const":"\b\t\n\f\r"})");
}

TEST(SchemaCheckTest, KeyOrderIsKept) {
  const char* const schema = R"({"properties":{"z":{},"a":{},"m":true},"type":"object",)"
                             R"("additionalProperties":{"type":"null"}})";
  EXPECT_EQ(Checked(schema), schema);
}

TEST(SchemaCheckTest, ObjectsAreClosedIfSatisfiable) {
  const char* const open[] = {R"({"properties":{"a":{}},"required":["b"]})",
                              R"({"allOf":[{"properties":{"a":{}}},{"properties":{"b":{}}}]})",
                              R"({"properties":{"a":{}},"anyOf":[{"required":["b"]}]})",
                              R"({"$defs":{"x":{"properties":{"a":{}}}},)"
                              R"("items":{"properties":{"b":{}},"$ref":"#/$defs/x"}})",
                              R"({"type":"object"})"};
  for (const char* schema : open) EXPECT_EQ(Checked(schema), schema);
  EXPECT_EQ(Checked(R"({"anyOf":[{"properties":{"a":{}}}]})"),
            R"({"anyOf":[{"properties":{"a":{}},"additionalProperties":false}]})");
}

TEST(SchemaCheckTest, CheckedSchemaStaysUnchanged) {
  const std::string once =
      Checked(R"({"$defs": {"a/b": {"properties": {"x": {"not": {}}}}}, )"
              R"("properties": {"a": {"$ref": "#/$defs/a~1b"}, "b": {"format": "regex"}}})",
              /*lenient=*/true);
  EXPECT_EQ(Checked(once), once);
  EXPECT_THAT(once, HasSubstr("\"additionalProperties\":false"));
}

TEST(SchemaCheckTest, UnenforceableKeywordIsRefusedOrDropped) {
  for (const char* keyword :
       {"not", "if", "then", "else", "contains", "minContains", "maxContains", "propertyNames",
        "dependencies", "dependentRequired", "dependentSchemas", "uniqueItems", "unevaluatedItems",
        "unevaluatedProperties", "$dynamicRef", "$recursiveRef"}) {
    const std::string schema = absl::StrCat(R"({"items":{")", keyword, R"(":true}})");
    EXPECT_EQ(Checked(schema), absl::StrCat("grammar.json_schema: #/items/", keyword,
                                            ": the keyword ", keyword, " cannot be enforced"));
    EXPECT_EQ(Checked(schema, true), R"({"items":{}})");
  }
  EXPECT_EQ(Checked(R"({"uniqueItems":false})"), "{}");
  EXPECT_EQ(Checked(R"({"format":"regex"})"),
            "grammar.json_schema: #/format: the format \"regex\" cannot be enforced");
  const char* const uuid = R"({"type":"string","minLength":1,"format":"uuid"})";
  EXPECT_EQ(Checked(uuid), uuid);
  EXPECT_EQ(Checked(R"({"type":"integer","format":"int32"})"), R"({"type":"integer"})");
  const auto fails = [](const std::string& schema) {
    return schema.find("(?=") == schema.npos ? std::string() : "no lookahead";
  };
  const std::string schema = R"x({"properties":{"a~/":{"pattern":"(?=x)"}}})x";
  EXPECT_EQ(CheckSchema(schema, false, fails).status().message(),
            "grammar.json_schema: #/properties/a~0~1/pattern: the pattern (no lookahead) cannot "
            "be enforced");
  EXPECT_EQ(*CheckSchema(schema, true, fails),
            R"({"properties":{"a~/":{}},"additionalProperties":false})");
}

TEST(SchemaCheckTest, ReferenceNeedsLocalSchema) {
  const std::string prefix = "grammar.json_schema: #/$ref: ";
  EXPECT_EQ(Checked(R"({"$ref":"http://example.com/a"})"),
            prefix + "must refer to this schema: #, or #/ and a path");
  EXPECT_EQ(Checked(R"({"$ref":"#/$defs/a"})"), prefix + "there is no schema at #/$defs/a");
  EXPECT_EQ(Checked(R"({"$ref":"#/enum/0","enum":[{}]})"),
            prefix + "there is no schema at #/enum/0");
  EXPECT_EQ(Checked(R"({"$ref":7})"), prefix + "must be a string");
}

// A limit of a schema.
struct Limit {
  std::string most, more;  // a schema at the limit, and a schema over the limit
  const char* error;       // part of the refusal of `more`
};

// Schemas with `count` parts, or of the given depth or size.
std::string Nested(size_t depth) {
  std::string schema;
  for (size_t i = 1; i < depth; ++i) schema += R"({"items":)";
  return schema + "{}" + std::string(depth - 1, '}');
}

std::string Branches(size_t count) {
  return absl::StrCat("{\"anyOf\":[", List(count, [](size_t) { return "{}"; }), "]}");
}

std::string Values(size_t count) {
  return absl::StrCat("{\"enum\":[", List(count, [](size_t i) { return absl::StrCat(i); }), "]}");
}

std::string ValueBytes(size_t bytes) {  // including brackets and quotes
  return absl::StrCat("{\"enum\":[\"", std::string(bytes - 4, 'x'), "\"]}");
}

std::string Pattern(const std::string& text) {
  return absl::StrCat("{\"pattern\":\"", text, "\"}");
}

std::string Patterns(size_t count) {
  return absl::StrCat(
      "{\"$defs\":{",
      List(count, [](size_t i) { return absl::StrCat("\"", i, "\":{\"pattern\":\"x\"}"); }), "}}");
}

std::string PatternProperties(size_t count) {
  return absl::StrCat("{\"patternProperties\":{",
                      List(count, [](size_t i) { return absl::StrCat("\"^", i, "$\":{}"); }), "}}");
}

std::string Nodes(size_t count) {  // including the root, its additionalProperties and 20 lists
  std::string schema = "{\"properties\":{";
  for (size_t i = 0, left = count - 2; left > 0; ++i) {
    const size_t here = std::min<size_t>(left, 251);
    absl::StrAppend(&schema, i == 0 ? "" : ",", "\"", i, "\":{\"anyOf\":[",
                    List(here - 1, [](size_t) { return "{}"; }), "]}");
    left -= here;
  }
  return schema + "}}";
}

std::string Multiples(const std::vector<std::string>& numbers) {
  return absl::StrCat(
      "{\"anyOf\":[",
      List(numbers.size(),
           [&](size_t i) { return absl::StrCat("{\"multipleOf\":", numbers[i], "}"); }),
      "]}");
}

std::string Keys(size_t count) {
  return absl::StrCat("{\"x-other\":{",
                      List(count, [](size_t i) { return absl::StrCat("\"", i, "\":0"); }), "}}");
}

std::string Bytes(size_t count) {  // size of the checked schema
  std::string schema = "{\"anyOf\":[";
  const std::string part = absl::StrCat("{\"const\":\"", std::string(9'985, 'x'), "\"},");
  while (schema.size() + part.size() < count) schema += part;
  const std::string end = "{\"const\":\"\"}]}";
  schema += "{\"const\":\"";
  schema += std::string(count - schema.size() - 4, 'y') + "\"}]}";
  return schema;
}

void ExpectExact(const std::vector<Limit>& limits) {
  for (const Limit& limit : limits) {
    EXPECT_TRUE(CheckSchema(limit.most, false, NoError).ok())
        << limit.error << ": " << Checked(limit.most);
    EXPECT_THAT(Checked(limit.more), HasSubstr(limit.error));
    EXPECT_THAT(Checked(limit.more, true), HasSubstr(limit.error)) << "lenient";
  }
}

TEST(SchemaCheckTest, StructureLimitsAreExact) {
  ExpectExact({
      {Nested(64), Nested(65), "#: must be at most 64 levels deep"},
      {Keys(1024), Keys(1025), "#: an object must have at most 1024 keys"},
      {Properties(0, 1000), Properties(0, 1001), "must have at most 1000 names; got 1001"},
      {Properties(400, 600), Properties(401, 600),
       "#/properties: must have at most 1000 properties"},
      {Properties(400, 9), Properties(401, 9),
       "must have at most 400 optional properties; got 401"},
      {Branches(256), Branches(257), "#/anyOf: must have at most 256 schemas; got 257"},
      {Values(1000), Values(1001), "#/enum: must have at most 1000 values; got 1001"},
      {ValueBytes(32768), ValueBytes(32769), "#/enum: must have at most 32768 bytes; got 32769"},
  });
}

TEST(SchemaCheckTest, PatternAndNumberLimitsAreExact) {
  ExpectExact({
      {Pattern(std::string(512, 'a')), Pattern(std::string(513, 'a')),
       "#/pattern: must have at most 512 bytes; got 513"},
      {Pattern("a{1,1000}b{7}"), Pattern("b{7}a{1,1001}"),
       "#/pattern: a repetition must be at most 1000; got 1001"},
      {Patterns(64), Patterns(65), "#: must have at most 64 patterns; got 65"},
      {PatternProperties(16), PatternProperties(17), "must have at most 16 patterns; got 17"},
      {Nodes(5000), Nodes(5001), "#: must have at most 5000 schemas; got 5001"},
      {Multiples({"10000", "0.25", "9975"}), Multiples({"10001"}),
       "#/anyOf/0/multipleOf: must be at most 10000"},
      {Multiples({"10000.0"}), Multiples({"20000.0"}),
       "#/anyOf/0/multipleOf: must be at most 10000"},
      {Multiples({"2.50"}), Multiples({"1e16"}), "#/anyOf/0/multipleOf: must be at most 10000"},
      {Multiples({"1e-7"}), Multiples({"10000", "0.26", "9975"}),
       "decimal points must be at most 20000; got 20001"},
      {Bytes(118784), Bytes(118785),
       "must have at most 118784 bytes without descriptions; got 118785"},
      {R"({"maxItems":1e6})", R"({"maxItems":1000001})", "must be a whole number in [0, 1000000]"},
      {R"({"minimum":1e308})", R"({"minimum":1e309})", "#: numbers must fit a double"},
  });
}

// The library computes with the least common multiple of numbers that a value must obey together:
// 9,973 and 9,967 took more than 3 GB.
TEST(SchemaCheckTest, MultiplesThatMeetHaveALimitTogether) {
  const auto all = [](const char* one, const char* other) {
    return Checked(
        absl::StrCat(R"({"allOf":[{"multipleOf":)", one, R"(},{"multipleOf":)", other, "}]}"));
  };
  const auto refused = HasSubstr("#: the least common multiple of all multipleOf must be at most");
  EXPECT_THAT(all("9973", "9967"), refused);
  EXPECT_THAT(all("100", "0.003"), refused);
  EXPECT_THAT(all("1e-7", "7"), refused);
  EXPECT_THAT(all("0.01", "0.05"), HasSubstr("allOf"));
  EXPECT_THAT(all("100", "200.0"), HasSubstr("200.0"));
  EXPECT_THAT(Checked(R"({"multipleOf":9973,"$ref":"#/$defs/a","$defs":{"a":{"multipleOf":7}}})"),
              refused);
  EXPECT_THAT(Checked(R"({"multipleOf":9973,"anyOf":[{"multipleOf":7}]})"), refused);
  EXPECT_THAT(Checked(R"({"anyOf":[{"multipleOf":9973},{"multipleOf":9967}]})"), HasSubstr("9967"));
  // Keywords next to anyOf that restrict no values.
  for (const char* beside :
       {R"("$defs":{"a":{}})", R"("definitions":{"a":{}})",
        R"("$schema":"https://json-schema.org/draft/2020-12/schema")", R"("description":"d")"}) {
    const std::string branches = R"("anyOf":[{"multipleOf":9973},{"multipleOf":9967}])";
    EXPECT_THAT(Checked(absl::StrCat("{", branches, ",", beside, "}")), HasSubstr("9967"));
    EXPECT_THAT(Checked(absl::StrCat("{", branches, ",", beside, R"(,"minimum":1})")), refused);
  }
}

TEST(SchemaCheckTest, StructuresInConstantsHaveALimit) {
  const auto constants = [](size_t count) {
    return Checked(
        absl::StrCat(R"({"const":[)", List(count - 1, [](size_t) { return "{}"; }), "]}"));
  };
  EXPECT_THAT(constants(1000), HasSubstr("\"const\""));
  EXPECT_THAT(
      constants(1001),
      HasSubstr("#: must have at most 1000 arrays and objects in const and enum; got 1001"));
}

// `links` definitions; each nests `depth` lists and then refers to the next definition.
std::string Chain(size_t links, size_t depth) {
  std::string schema = R"({"$ref":"#/$defs/0","$defs":{)";
  for (size_t i = 0; i < links; ++i) {
    absl::StrAppend(&schema, "\"", i, "\":");
    for (size_t j = 0; j < depth; ++j) schema += R"({"items":)";
    absl::StrAppend(&schema, R"({"$ref":"#/$defs/)", i + 1, "\"}", std::string(depth, '}'), ",");
  }
  return absl::StrCat(schema, "\"", links, "\":{}}}");
}

TEST(SchemaCheckTest, NestingThroughReferencesHasALimit) {
  const auto refused = HasSubstr("schemas and references must not be nested deeper than 256");
  EXPECT_THAT(Checked(Chain(6, 41)), HasSubstr("$defs"));  // 1 + 6 * 42 + 1 levels
  EXPECT_THAT(Checked(Chain(6, 42)), refused);
  EXPECT_THAT(Checked(Chain(60, 50)), refused);
  EXPECT_THAT(Checked(Chain(1000, 1)), refused);
  const char* const tree =
      R"({"properties":{"a":{"$ref":"#"},"b":{"$ref":"#"}},"additionalProperties":false})";
  EXPECT_EQ(Checked(tree), tree);
}

TEST(SchemaCheckTest, IntersectionsHaveALimit) {
  const auto refused = HasSubstr("must sum up to at most 75000");
  const auto values = [](size_t count) {
    return absl::StrCat("{\"enum\":[", List(count, [](size_t i) { return absl::StrCat(i); }), "]}");
  };
  const auto both = [](const std::string& one, const std::string& other) {
    return Checked(absl::StrCat("{\"allOf\":[", one, ",", other, "]}"));
  };
  EXPECT_THAT(both(values(180), values(180)), HasSubstr("allOf"));
  EXPECT_THAT(both(values(190), values(190)), refused);
  EXPECT_THAT(both(values(10), R"({"$ref":"#/$defs/a"}],"$defs":{"a":{}},"x":[0)"),
              HasSubstr("$ref"));
  // Three times 40 branches of one property.
  const auto part = [&](size_t count) {
    return absl::StrCat(R"({"properties":{"a":)", values(count), "}}");
  };
  EXPECT_THAT(both(part(20), absl::StrCat(part(20), ",", part(5))), HasSubstr("allOf"));
  EXPECT_THAT(both(part(40), absl::StrCat(part(40), ",", part(40))), refused);
}

TEST(SchemaCheckTest, RecursiveSchemasMayNotMeet) {
  const auto both = [](const char* property) {
    return Checked(absl::StrCat(
        R"({"$defs":{"e":{"properties":{"parent":{"$ref":"#/$defs/e"}}}},"allOf":[)",
        R"({"$ref":"#/$defs/e"},{"properties":{")", property, R"(":{"$ref":"#"}}}]})"));
  };
  EXPECT_THAT(both("children"), HasSubstr("\"children\""));
  EXPECT_THAT(both("parent"), HasSubstr("#: allOf, and anyOf"));
}

TEST(SchemaCheckTest, ShortestTextHasALimit) {
  const auto refused = HasSubstr("the bytes of the shortest text must be at most 65536");
  const auto list = [](int count) {
    return absl::StrCat(R"({"type":"array","items":{"const":"123456"},"minItems":)", count, "}");
  };
  EXPECT_EQ(Checked(list(6553)), list(6553));  // 2 + 6553 * 10 - 2 bytes
  EXPECT_THAT(Checked(list(6554)), refused);
  EXPECT_THAT(Checked(absl::StrCat(R"({"anyOf":[{},)", list(9999), "]}")),
              HasSubstr("#/anyOf/1: the bytes"));
  EXPECT_THAT(Checked(absl::StrCat(R"({"$defs":{"a":)", list(100),
                                   R"(},"items":{"$ref":"#/$defs/a"},"minItems":99})")),
              refused);
  EXPECT_THAT(Checked(R"({"type":"string","minLength":65535})"), refused);
  EXPECT_THAT(Checked(R"x({"pattern":"^([a-z]\\d{300}|x{1000}){400}$"})x"), refused);
  EXPECT_THAT(Checked(R"x({"pattern":"^(?:a{1,1000}|x?){0,400}$"})x"), HasSubstr("pattern"));
  EXPECT_THAT(Checked(R"({"type":"array","items":{"$ref":"#"},"minItems":1})"), HasSubstr("$ref"));
}

TEST(SchemaCheckTest, DescriptionsCountOnlyForText) {
  EXPECT_THAT(Checked("{\"description\":\"" + std::string(1 << 20, 'x') + "\"}"),
              HasSubstr("must have at most 1048576 bytes"));
  EXPECT_EQ(Checked("{\"description\":\"" + std::string(100'000, 'x') + "\"}"), "{}");
}

TEST(SchemaCheckTest, MalformedSchemaIsRefusedWithPath) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type": "objekt"})", "#/type: must be the name of a JSON type"},
      {R"({"type": []})", "#/type: must be the name of a JSON type"},
      {R"({"properties": []})", "#/properties: must be an object"},
      {R"({"properties": {"a": 7}})", "#/properties/a: must be a schema"},
      {R"({"anyOf": {}})", "#/anyOf: must be a list"},
      {R"({"enum": 7})", "#/enum: must be a list"},
      {R"({"required": [7]})", "#/required: must be a list of strings"},
      {R"({"minimum": "7"})", "#/minimum: must be a number"},
      {R"({"minLength": 1.5})", "#/minLength: must be a whole number in [0, 1000000]"},
      {R"({"maxItems": -1})", "#/maxItems: must be a whole number in [0, 1000000]"},
      {R"({"multipleOf": 0})", "#/multipleOf: must be above 0"},
      {R"({"pattern": 7})", "#/pattern: must be a string"},
      {R"({"format": 7})", "#/format: must be a string"},
      {R"({"const": ["a\u0000"]})", "#/const: must not contain control characters"},
      {R"({"enum": [{"\u001f": 1}]})", "#/enum: must not contain control characters"},
      {R"({"properties": {"\u0001": {}}})", "#/properties: must not contain control characters"},
      {R"({"items": 7})", "#/items: must be a schema"},
      {"7", "#: must be a schema"},
      {"false", "#: must allow a value"},
      {"{\"type\":", "#: is not valid JSON at byte 9"},
      {"", "#: is not valid JSON"},
      {"{\"a\": \"\xFF\"}", "#: is not valid JSON"}};
  for (const auto& [schema, error] : cases) EXPECT_THAT(Checked(schema), HasSubstr(error));
}

TEST(SchemaCheckTest, FindErrorReturnsInnermostPath) {
  const auto fails = [](const std::string& schema) {
    return schema.find("oneOf") == schema.npos ? std::string() : "no oneOf";
  };
  EXPECT_EQ(FindError(R"({"properties":{"a":{},"b":{"items":{"oneOf":[{}]}}}})", "no oneOf", fails),
            "#/properties/b/items");
  // The search ends after 256 KiB or 16 schemas.
  size_t tries = 0, bytes = 0;
  const auto never = [&](const std::string& schema) {
    ++tries;
    bytes += schema.size();
    return "";
  };
  EXPECT_EQ(FindError(Branches(200), "another", never), "#");
  EXPECT_EQ(tries, 16u);
  const std::string part = absl::StrCat("{\"const\":\"", std::string(60'000, 'x'), "\"}");
  EXPECT_EQ(FindError(absl::StrCat("{\"anyOf\":[", List(9, [&](size_t) { return part; }), "]}"),
                      "another", never),
            "#");
  EXPECT_LE(bytes, 300'000u);
  EXPECT_EQ(FindError(R"({"oneOf":[{}]})", "no oneOf", fails), "#");
}

}  // namespace
}  // namespace hearth
