// CheckSchema: the limits of a schema, the path in a refusal, and the keywords of the result.
#include "worker/text/schema/schema_check.h"

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

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string NoError(const std::string& /*schema*/) { return ""; }

std::string Checked(const std::string& schema, bool lenient = false) {
  const auto checked = CheckSchema(schema, lenient, NoError);
  return checked.ok() ? *checked : std::string(checked.status().message());
}

// Matches the result of Checked for a schema that is not refused.
MATCHER(IsAccepted, "is a schema") { return arg.front() == '{'; }

// Matches the refusal of a schema with the path and the beginning of the reason.
auto IsRefused(const std::string& reason) {
  return StartsWith(absl::StrCat("grammar.json_schema: ", reason));
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
            prefix +
                "must refer to this schema: #, or #/ and a path; got "
                "\"http://example.com/a\"");
  EXPECT_EQ(Checked(R"({"$ref":"#/$defs/a"})"), prefix + "there is no schema at #/$defs/a");
  EXPECT_EQ(Checked(R"({"$ref":"#/enum/0","enum":[{}]})"),
            prefix + "there is no schema at #/enum/0");
  EXPECT_EQ(Checked(R"({"$ref":7})"), prefix + "must be a string");
}

// A limit of a schema.
struct Limit {
  std::string most, more;  // a schema at the limit, and a schema over the limit
  const char* error;       // beginning of the refusal of `more`
};

// The functions below return schemas with `count` parts, or of the given depth or size.
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

// `bytes`: size of the enum's JSON text, with its brackets and quotes.
std::string ValueBytes(size_t bytes) {
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

// `count`: number of schemas, with the root, its additionalProperties and 20 lists.
std::string Nodes(size_t count) {
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

// `count`: bytes of the checked schema.
std::string Bytes(size_t count) {
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
    EXPECT_THAT(Checked(limit.more), IsRefused(limit.error));
    EXPECT_THAT(Checked(limit.more, true), IsRefused(limit.error)) << "lenient";
  }
}

TEST(SchemaCheckTest, StructureLimitsAreExact) {
  ExpectExact({
      {Nested(64), Nested(65), "#: must be at most 64 levels deep"},
      {Keys(1024), Keys(1025), "#: an object must have at most 1024 keys"},
      {Properties(0, 1000), Properties(0, 1001),
       "#/required: must have at most 1000 names; got 1001"},
      {Properties(400, 600), Properties(401, 600),
       "#/properties: must have at most 1000 properties"},
      {Properties(400, 9), Properties(401, 9),
       "#/properties: must have at most 400 optional properties; got 401"},
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
      {PatternProperties(16), PatternProperties(17),
       "#/patternProperties: must have at most 16 patterns; got 17"},
      {Nodes(5000), Nodes(5001), "#: must have at most 5000 schemas; got 5001"},
      {Multiples({"10000", "0.25", "9975"}), Multiples({"10001"}),
       "#/anyOf/0/multipleOf: must be at most 10000"},
      {Multiples({"10000.0"}), Multiples({"20000.0"}),
       "#/anyOf/0/multipleOf: must be at most 10000"},
      {Multiples({"2.50"}), Multiples({"1e16"}), "#/anyOf/0/multipleOf: must be at most 10000"},
      {Multiples({"1e-7"}), Multiples({"10000", "0.26", "9975"}),
       "#/anyOf/2/multipleOf: the sum of all multipleOf without their decimal points must be at "
       "most 20000; got 20001"},
      {Bytes(118784), Bytes(118785),
       "#: must have at most 118784 bytes without descriptions; got 118785"},
      {R"({"maxItems":1e6})", R"({"maxItems":1000001})",
       "#/maxItems: must be a whole number in [0, 1000000]"},
      {R"({"minimum":1e308})", R"({"minimum":1e309})", "#: numbers must fit a double"},
  });
}

// The library computes with the least common multiple of numbers that a value must obey together:
// 9,973 and 9,967 took more than 3 GB.
TEST(SchemaCheckTest, MultiplesOfOneValueHaveALimit) {
  const auto all = [](const char* one, const char* other) {
    return Checked(
        absl::StrCat(R"({"allOf":[{"multipleOf":)", one, R"(},{"multipleOf":)", other, "}]}"));
  };
  const auto refused =
      IsRefused("#: the least common multiple of all multipleOf must be at most 20000");
  EXPECT_THAT(all("9973", "9967"), refused);
  EXPECT_THAT(all("100", "0.003"), refused);
  EXPECT_THAT(all("1e-7", "7"), refused);
  EXPECT_THAT(all("0.01", "0.05"), IsAccepted());
  EXPECT_THAT(all("100", "200.0"), IsAccepted());
  EXPECT_THAT(Checked(R"({"multipleOf":9973,"$ref":"#/$defs/a","$defs":{"a":{"multipleOf":7}}})"),
              refused);
  EXPECT_THAT(Checked(R"({"multipleOf":9973,"anyOf":[{"multipleOf":7}]})"), refused);
  EXPECT_THAT(Checked(R"({"anyOf":[{"multipleOf":9973},{"multipleOf":9967}]})"), IsAccepted());
  // Keywords that restrict no values may stand next to anyOf.
  for (const char* beside :
       {R"("$defs":{"a":{}})", R"("definitions":{"a":{}})",
        R"("$schema":"https://json-schema.org/draft/2020-12/schema")", R"("description":"d")"}) {
    const std::string branches = R"("anyOf":[{"multipleOf":9973},{"multipleOf":9967}])";
    EXPECT_THAT(Checked(absl::StrCat("{", branches, ",", beside, "}")), IsAccepted());
    EXPECT_THAT(Checked(absl::StrCat("{", branches, ",", beside, R"(,"minimum":1})")), refused);
  }
}

TEST(SchemaCheckTest, StructuresInConstantsHaveALimit) {
  const auto constants = [](size_t count) {
    return Checked(
        absl::StrCat(R"({"const":[)", List(count - 1, [](size_t) { return "{}"; }), "]}"));
  };
  EXPECT_THAT(constants(1000), IsAccepted());
  EXPECT_THAT(
      constants(1001),
      IsRefused("#: must have at most 1000 arrays and objects in const and enum; got 1001"));
}

// Returns a schema of `links` definitions that each nest `depth` lists and refer to the next one.
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
  const auto refused = [](const char* place) {
    return IsRefused(absl::StrCat(place,
                                  ": schemas and references must not be nested deeper than "
                                  "256"));
  };
  EXPECT_THAT(Checked(Chain(6, 41)), IsAccepted());  // 1 + 6 * 42 + 1 levels
  EXPECT_THAT(Checked(Chain(6, 42)), refused("#/$defs/0"));
  EXPECT_THAT(Checked(Chain(60, 50)), refused("#/$defs/54"));
  EXPECT_THAT(Checked(Chain(1000, 1)), refused("#/$defs/872"));
  const char* const tree =
      R"({"properties":{"a":{"$ref":"#"},"b":{"$ref":"#"}},"additionalProperties":false})";
  EXPECT_EQ(Checked(tree), tree);
}

TEST(SchemaCheckTest, IntersectionsHaveALimit) {
  const auto refused = [](const char* place) {
    return IsRefused(absl::StrCat(place,
                                  ": allOf, and anyOf, oneOf, enum or $ref beside other "
                                  "keywords: the combinations of their alternatives"));
  };
  const auto values = [](size_t count) {
    return absl::StrCat("{\"enum\":[", List(count, [](size_t i) { return absl::StrCat(i); }), "]}");
  };
  const auto both = [](const std::string& one, const std::string& other) {
    return Checked(absl::StrCat("{\"allOf\":[", one, ",", other, "]}"));
  };
  EXPECT_THAT(both(values(51), values(51)), IsAccepted());
  EXPECT_THAT(both(values(52), values(52)), refused("#"));
  EXPECT_THAT(Checked(absl::StrCat("{\"properties\":{\"a\":{\"anyOf\":[", values(52), "],",
                                   values(52).substr(1), "}}")),
              refused("#/properties/a"));
  // A value that must obey a pattern costs more than a value that must obey a type.
  const auto typed = [&](size_t count, const char* beside) {
    return Checked(absl::StrCat("{", beside, ",", values(count).substr(1)));
  };
  EXPECT_THAT(typed(1000, R"("type":"integer")"), IsAccepted());
  EXPECT_THAT(typed(500, R"("pattern":"1")"), IsAccepted());
  EXPECT_THAT(typed(800, R"("pattern":"1")"), refused("#"));
  EXPECT_THAT(both(values(10), R"({"$ref":"#/$defs/a"}],"$defs":{"a":{}},"x":[0)"), IsAccepted());
  // Three schemas of one property: each has 40 values.
  const auto part = [&](size_t count) {
    return absl::StrCat(R"({"properties":{"a":)", values(count), "}}");
  };
  EXPECT_THAT(both(part(15), absl::StrCat(part(15), ",", part(3))), IsAccepted());
  EXPECT_THAT(both(part(40), absl::StrCat(part(40), ",", part(40))), refused("#"));
}

TEST(SchemaCheckTest, RecursiveSchemasMustNotIntersect) {
  const auto both = [](const char* property) {
    return Checked(absl::StrCat(
        R"({"$defs":{"e":{"properties":{"parent":{"$ref":"#/$defs/e"}}}},"allOf":[)",
        R"({"$ref":"#/$defs/e"},{"properties":{")", property, R"(":{"$ref":"#"}}}]})"));
  };
  EXPECT_THAT(both("children"), IsAccepted());
  EXPECT_THAT(both("parent"), IsRefused("#: allOf, and anyOf"));
}

TEST(SchemaCheckTest, ShortestTextHasALimit) {
  const auto refused = [](const char* place) {
    return IsRefused(absl::StrCat(place, ": the bytes of the shortest text must be at most 65536"));
  };
  const auto list = [](int count) {
    return absl::StrCat(R"({"type":"array","items":{"const":"123456"},"minItems":)", count, "}");
  };
  EXPECT_EQ(Checked(list(6553)), list(6553));  // 2 + 6553 * 10 - 2 bytes
  EXPECT_THAT(Checked(list(6554)), refused("#"));
  EXPECT_THAT(Checked(absl::StrCat(R"({"anyOf":[{},)", list(9999), "]}")), refused("#/anyOf/1"));
  EXPECT_THAT(Checked(absl::StrCat(R"({"$defs":{"a":)", list(100),
                                   R"(},"items":{"$ref":"#/$defs/a"},"minItems":99})")),
              refused("#"));
  EXPECT_THAT(Checked(R"({"type":"string","minLength":65535})"), refused("#"));
  EXPECT_THAT(Checked(R"x({"pattern":"^([a-z]\\d{300}|x{1000}){400}$"})x"), refused("#"));
  EXPECT_THAT(Checked(R"x({"pattern":"^(?:a{1,1000}|x?){0,400}$"})x"), IsAccepted());
  EXPECT_THAT(Checked(R"({"type":"array","items":{"$ref":"#"},"minItems":1})"), IsAccepted());
  // Each definition refers to the definition before it. A list contains two of the inner lists, so
  // the shortest text doubles with each definition.
  const auto backward = [](size_t links) {
    return absl::StrCat(R"({"$defs":{"0":{"type":"null"},)",
                        List(links,
                             [](size_t i) {
                               return absl::StrCat("\"", i + 1, R"(":{"type":"array","minItems":)",
                                                   i < 15 ? 2 : 1, R"(,"items":{"$ref":"#/$defs/)",
                                                   i, "\"}}");
                             }),
                        R"(},"$ref":"#/$defs/)", links, "\"}");
  };
  EXPECT_THAT(Checked(backward(13)), IsAccepted());
  EXPECT_THAT(Checked(backward(15)), refused("#/$defs/15/items"));
  EXPECT_THAT(Checked(backward(120)), refused("#/$defs/120/items"));
}

TEST(SchemaCheckTest, DescriptionsCountOnlyInRequestSize) {
  EXPECT_THAT(Checked("{\"description\":\"" + std::string(1 << 20, 'x') + "\"}"),
              IsRefused("#: must have at most 1048576 bytes; got 1048594"));
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
  for (const auto& [schema, error] : cases) EXPECT_THAT(Checked(schema), IsRefused(error));
}

TEST(SchemaCheckTest, DuplicateKeyIsRefusedWithPath) {
  EXPECT_EQ(Checked(R"({"properties":{"a":{},"b":{"items":[true,{"type":7,"type":8}]}}})"),
            "grammar.json_schema: #/properties/b/items/1: must not have the key \"type\" twice");
  EXPECT_EQ(Checked(R"({"x-other":{"\u0061":1,"a":1}})"),
            "grammar.json_schema: #/x-other: must not have the key \"a\" twice");
  EXPECT_EQ(Checked(R"({"a":1,"a":1})"),
            "grammar.json_schema: #: must not have the key \"a\" twice");
}

TEST(SchemaCheckTest, EmptyListIsRefusedUnlessLenient) {
  for (const char* keyword : {"enum", "anyOf", "oneOf"}) {
    const std::string schema = absl::StrCat("{\"items\":{\"", keyword, "\":[]}}");
    EXPECT_EQ(Checked(schema), absl::StrCat("grammar.json_schema: #/items/", keyword,
                                            ": must not be empty: no value satisfies an empty "
                                            "list"));
    EXPECT_EQ(Checked(schema, /*lenient=*/true), schema);
  }
}

TEST(SchemaCheckTest, ClosedObjectNeedsEnoughProperties) {
  const auto object = [](size_t optional, size_t required, const char* more) {
    const std::string properties = Properties(optional, required);
    return Checked(absl::StrCat("{\"type\":\"object\",", more, ",", properties.substr(1)));
  };
  EXPECT_THAT(object(2, 1, R"("minProperties":3)"), IsAccepted());
  EXPECT_EQ(object(2, 1, R"("minProperties":4)"),
            "grammar.json_schema: #/minProperties: must be at most 3, the number of properties, "
            "because additionalProperties is false; got 4");
  // The library writes a list of properties for each choice of one optional property.
  EXPECT_THAT(object(44, 1, R"("minProperties":2)"), IsAccepted());
  EXPECT_EQ(object(45, 1, R"("minProperties":2)"),
            "grammar.json_schema: #/minProperties: the object must have at most 44 optional "
            "properties with this minProperties; got 45");
  EXPECT_THAT(object(400, 1, R"("maxProperties":2)"), IsAccepted());
  EXPECT_THAT(object(400, 500, R"("maxProperties":501)"), IsRefused("#: allOf, and anyOf"));
}

// An answer may repeat a key that `properties` does not list, and then has fewer keys than written.
TEST(SchemaCheckTest, RepeatedKeysMustNotReachMinProperties) {
  for (const char* rest : {R"("additionalProperties":true,"properties":{"x":{}})",
                           R"("additionalProperties":{"type":"boolean"})",
                           R"("additionalProperties":false,"patternProperties":{"a":{}})"}) {
    const auto object = [&](int least) {
      return absl::StrCat(R"({"type":"object","required":["x"],"minProperties":)", least, ",", rest,
                          "}");
    };
    EXPECT_THAT(Checked(object(2)), IsAccepted()) << rest;
    EXPECT_THAT(Checked(object(3)), IsRefused("#/minProperties: must be at most the number"))
        << rest;
    EXPECT_EQ(Checked(object(3), /*lenient=*/true).find("minProperties"), std::string::npos);
  }
  // Objects that stay open although they list `properties`, and a name that is required twice.
  for (const char* schema :
       {R"({"type":"object","properties":{"a":{}},"required":["a","b"],"minProperties":4})",
        R"({"allOf":[{"type":"object","properties":{"a":{}},"required":["a"],"minProperties":3}]})",
        R"({"anyOf":[{"type":"object"}],"properties":{"o":{"properties":{},"minProperties":2}}})",
        R"({"additionalProperties":{},"required":["a","a"],"minProperties":3})"}) {
    EXPECT_THAT(Checked(schema), ::testing::HasSubstr("/minProperties: must be at most the number"))
        << schema;
  }
}

std::string Text(const std::string& more) {
  return absl::StrCat(R"({"type":"string",)", more, "}");
}

TEST(SchemaCheckTest, PatternsOfOneStringHaveALimit) {
  const auto all = [](size_t count, const std::string& one) {
    return absl::StrCat("{\"allOf\":[", List(count, [&](size_t) { return one; }), "]}");
  };
  const auto refused = [](const char* place, int count) {
    return absl::StrCat("grammar.json_schema: ", place,
                        ": one string must obey at most 4 patterns and formats together; got ",
                        count);
  };
  const std::string one = Text(R"("pattern":"a")"), two = Text(R"("pattern":"a","format":"uri")");
  EXPECT_THAT(Checked(all(4, one)), IsAccepted());
  EXPECT_EQ(Checked(all(5, one)), refused("#", 5));
  EXPECT_THAT(Checked(all(2, two)), IsAccepted());
  EXPECT_EQ(Checked(all(3, two)), refused("#", 6));
  EXPECT_EQ(Checked(absl::StrCat("{\"items\":", all(5, one), "}")), refused("#/items", 5));
  EXPECT_EQ(Checked(absl::StrCat(R"({"$defs":{"a":)", all(3, one), R"(},"$ref":"#/$defs/a",)",
                                 two.substr(1))),
            refused("#", 5));
  // A string obeys one alternative of anyOf, and the pattern next to anyOf.
  EXPECT_THAT(Checked(absl::StrCat("{\"anyOf\":[", List(9, [&](size_t) { return one; }), "]}")),
              IsAccepted());
  EXPECT_EQ(Checked(absl::StrCat("{\"anyOf\":[{},", all(4, one), "],", one.substr(1))),
            refused("#", 5));
  // Patterns of the same property, or of the same items, in several schemas.
  const auto in = [](const std::string& schema, const char* name) {
    return absl::StrCat("{\"properties\":{\"", name, "\":", schema, "}}");
  };
  EXPECT_EQ(Checked(all(5, in(one, "a"))), refused("#", 5));
  EXPECT_THAT(Checked(absl::StrCat("{\"allOf\":[", in(all(4, one), "a"), ",", in(one, "b"), "]}")),
              IsAccepted());
  EXPECT_EQ(
      Checked(absl::StrCat("{\"allOf\":[{\"items\":", all(4, one), "},{\"items\":", one, "}]}")),
      refused("#", 5));
  EXPECT_EQ(Checked(absl::StrCat(R"({"patternProperties":{"b":)", one, "},",
                                 in(all(4, one), "a").substr(1))),
            refused("#", 5));
}

TEST(SchemaCheckTest, PatternsAreCheckedBeforeTheLibraryReadsThem) {
  EXPECT_EQ(Checked(Pattern(R"(a\\\\)")), Pattern(R"(a\\\\)"));
  for (const bool lenient : {false, true}) {
    EXPECT_EQ(Checked(Pattern(R"(a\\\\\\)"), lenient),
              "grammar.json_schema: #/pattern: must not end with a lone backslash");
    EXPECT_EQ(Checked(Pattern("a{ 1001 }"), lenient),
              "grammar.json_schema: #/pattern: a repetition must be at most 1000; got 1001");
    EXPECT_EQ(Checked(Pattern("(?ix)a"), lenient),
              "grammar.json_schema: #/pattern: must not have the flag x");
  }
  const auto classes = [](size_t count) {
    return Checked(absl::StrCat(
        "{\"$defs\":{",
        List(count,
             [](size_t i) { return absl::StrCat("\"", i, R"(":{"pattern":"\\p{L}\\PN"})"); }),
        "}}"));
  };
  EXPECT_THAT(classes(32), IsAccepted());
  EXPECT_EQ(classes(33),
            "grammar.json_schema: #: must have at most 64 classes such as \\p{L} in all patterns; "
            "got 66");
}

TEST(SchemaCheckTest, ReferenceSpellingsAreNormalized) {
  const auto checked = [](const char* reference) {
    return Checked(absl::StrCat(R"({"$defs":{"a b":{},"$/~%é":{},"%62":{}},"anyOf":[{},{"items":)"
                                R"({}}],"$ref":")",
                                reference, "\"}"));
  };
  const auto leads_to = [](const char* spelling) {
    return EndsWith(absl::StrCat(R"("$ref":")", spelling, "\"}"));
  };
  for (const char* spelling : {"#/$defs/a%20b", "#/%24defs/%61 b", "#/%24%64efs%2fa b"}) {
    EXPECT_THAT(checked(spelling), leads_to("#/$defs/a%20b"));
  }
  for (const char* spelling : {"#/$defs/$~1~0%25%C3%A9", "#/$defs/%24~1~0%é"}) {
    EXPECT_THAT(checked(spelling), leads_to("#/$defs/$~1~0%25%C3%A9"));
  }
  EXPECT_THAT(checked("#/anyOf/1/items"), leads_to("#/anyOf/1/items"));
  EXPECT_THAT(checked("#/$defs/%2562"), leads_to("#/$defs/%2562"));
  for (const char* none : {"#/$defs/%62", "#/anyOf/01", "#/anyOf/+1", "#/anyOf/2", "#/", "#/$defs",
                           "#/anyOf/1/items/", "#/$ref", "#/$ref/a"}) {
    EXPECT_EQ(checked(none),
              absl::StrCat("grammar.json_schema: #/$ref: there is no schema at ", none));
  }
}

TEST(SchemaCheckTest, ErrorsQuoteLittleTextOfTheSchema) {
  const std::string name(100'000, 'x');
  EXPECT_EQ(Checked(absl::StrCat("{\"properties\":{\"", name, "\":{\"type\":7}}}")),
            absl::StrCat("grammar.json_schema: #/properties/", name.substr(0, 128),
                         ".../type: must be the name of a JSON type, or a list of names"));
  EXPECT_THAT(Checked(R"({"properties":{"a: b/~%\n\"é":7}})"),
              IsRefused("#/properties/a:%20b~1~0%25%0A\"é: must be a schema"));
  for (const std::string& schema :
       {absl::StrCat("{\"format\":\"", name, "\"}"), absl::StrCat("{\"$ref\":\"", name, "\"}"),
        absl::StrCat("{\"$ref\":\"#/", name, "\"}"),
        absl::StrCat("{\"a\":{\"", name, "\":1,\"", name, "\":1}}")}) {
    EXPECT_LT(Checked(schema).size(), 300u) << Checked(schema).substr(0, 100);
  }
  // The middle of a long path is cut.
  std::string deep = "{\"type\":7}";
  for (int i = 0; i < 30; ++i) {
    deep = absl::StrCat("{\"properties\":{\"", i, std::string(120, 'y'), "\":", deep, "}}");
  }
  const std::string error = Checked(deep);
  EXPECT_THAT(error, IsRefused("#/properties/29yyy"));
  EXPECT_THAT(error, HasSubstr("yyy/type: must be the name of a JSON type"));
  EXPECT_LT(error.size(), 620u);
}

// The library compares each schema of a oneOf with each other schema of the oneOf.
TEST(SchemaCheckTest, ComparisonsOfOneOfHaveALimit) {
  const auto one_of = [](size_t count) {
    return Checked(
        absl::StrCat("{\"oneOf\":[", List(15, [&](size_t) { return Values(count); }), "]}"));
  };
  EXPECT_THAT(one_of(500), IsAccepted());
  EXPECT_THAT(one_of(700), IsRefused("#: allOf, and anyOf, oneOf"));
}

TEST(SchemaCheckTest, CompiledSchemasHaveALimit) {
  const auto list = [](size_t count, const char* one) {
    return absl::StrCat(
        "{\"anyOf\":[",
        List((count + 99) / 100,
             [&](size_t i) {
               return absl::StrCat(
                   "{\"anyOf\":[",
                   List(std::min<size_t>(100, count - i * 100), [&](size_t) { return one; }), "]}");
             }),
        "]}");
  };
  const auto refused = IsRefused("#: all schemas must count at most 6000: 1 each;");
  EXPECT_THAT(Checked(list(4900, "{}")), IsAccepted());
  // The root and the anyOf schemas count, too.
  EXPECT_THAT(Checked(list(1993, R"({"minLength":1})")), IsAccepted());
  EXPECT_THAT(Checked(list(1994, R"({"minLength":1})")), refused);
  EXPECT_THAT(Checked(list(499, R"({"type":"string","format":"uri"})")), IsAccepted());
  EXPECT_THAT(Checked(list(500, R"({"type":"string","format":"uri"})")), refused);
  EXPECT_THAT(Checked(list(544, R"({"type":"array","minItems":7,"maxItems":1023})")), IsAccepted());
  EXPECT_THAT(Checked(list(544, R"({"type":"array","maxItems":1024})")), refused);
  EXPECT_THAT(Checked(list(545, R"({"type":"array","maxItems":1023})")), refused);
  // Two targets of references contain the same schemas.
  const auto twice = [&](size_t count) {
    return Checked(
        absl::StrCat(R"({"$defs":{"a":{"items":)", list(count, "{}"),
                     R"(}},"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a/items"}]})"));
  };
  const auto root_twice = [&](size_t count) {
    return Checked(absl::StrCat(R"({"type":"array","items":{"anyOf":[{"$ref":"#"},)",
                                list(count, "{}"), "]}}"));
  };
  EXPECT_THAT(root_twice(2900), IsAccepted());
  EXPECT_THAT(root_twice(3000), refused);
  EXPECT_THAT(twice(2900), IsAccepted());
  EXPECT_THAT(twice(3000), refused);
}

TEST(SchemaCheckTest, FindErrorReturnsInnermostPath) {
  const auto fails = [](const std::string& schema) {
    return schema.find("oneOf") == schema.npos ? std::string() : "no oneOf";
  };
  EXPECT_EQ(FindError(R"({"properties":{"a":{},"b":{"items":{"oneOf":[{}]}}}})", "no oneOf", fails),
            "#/properties/b/items");
  // The search ends after 16 schemas.
  size_t tries = 0, bytes = 0;
  const auto never = [&](const std::string& schema) {
    ++tries;
    bytes += schema.size();
    return "";
  };
  EXPECT_EQ(FindError(Branches(200), "another", never), "#");
  EXPECT_EQ(tries, 16u);
  const auto search = [&](const std::string& part, size_t count) {
    tries = bytes = 0;
    EXPECT_EQ(
        FindError(absl::StrCat("{\"anyOf\":[", List(count, [&](size_t) { return part; }), "]}"),
                  "another", never),
        "#");
  };
  // FindError compiles fewer schemas if each has many bytes or a high cost. It does not compile a
  // schema that costs more than is left.
  search(absl::StrCat("{\"const\":\"", std::string(60'000, 'x'), "\"}"), 9);
  EXPECT_EQ(tries, 8u);
  search(absl::StrCat("{\"allOf\":[", Values(30), ",", Values(30), "]}"), 9);
  EXPECT_EQ(tries, 1u);
  search(absl::StrCat("{\"anyOf\":[", List(240, [](size_t) { return R"({"minimum":7})"; }), "]}"),
         9);
  EXPECT_EQ(tries, 2u);
  EXPECT_EQ(FindError(R"({"oneOf":[{}]})", "no oneOf", fails), "#");
}

}  // namespace
}  // namespace hearth
