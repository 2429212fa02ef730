#include "services/openai/answer_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/services/openai/hostile_bodies.h"
#include "worker/text/schema/schema_check.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

JsonDocument Document(const std::string& text) {
  absl::StatusOr<JsonDocument> document = JsonDocument::Parse(text, "schema");
  EXPECT_TRUE(document.ok()) << document.status() << text;
  return *std::move(document);
}

std::string SchemaOf(const std::string& schema) {
  const JsonDocument document = Document(schema);
  AnswerShape shape;
  shape.schema = document.root();
  std::string out;
  const absl::Status status = AppendAnswerSchema(shape, &out);
  return status.ok() ? out : absl::StrCat("error: ", status.message());
}

std::string CallOf(const std::string& parameters, bool parallel = false) {
  const JsonDocument document = Document(parameters);
  AnswerShape shape;
  shape.calls = {{"f", "p", document.root()}};
  shape.parallel = parallel;
  std::string out;
  const absl::Status status = AppendAnswerSchema(shape, &out);
  return status.ok() ? out : absl::StrCat("error: ", status.message());
}

// Returns the schema of the function's parameters inside the built schema.
std::string Parameters(const std::string& parameters) {
  return nlohmann::ordered_json::parse(CallOf(parameters))["$defs"]["f"].dump();
}

TEST(AnswerSchema, ObjectsWithPropertiesAreClosed) {
  const std::pair<const char*, const char*> schemas[] = {
      {R"({"type": "object", "properties": {"b": {}, "a": {"properties": {}}}})",
       R"({"type": "object", "properties": {"b": {}, "a": {"properties": {}, )"
       R"("additionalProperties": false}}, "additionalProperties": false})"},
      {R"({"type": "object"})", R"({"type": "object"})"},
      {R"({"properties": {"a": {}}, "additionalProperties": true})",
       R"({"properties": {"a": {}}, "additionalProperties": true})"},
      {R"({"properties": {"a": {}}, "patternProperties": {"b": {}}})",
       R"({"properties": {"a": {}}, "patternProperties": {"b": {}}})"},
      {R"({"properties": {"a": {}}, "minProperties": 2})",
       R"({"properties": {"a": {}}, "minProperties": 2})"},
      {R"({"properties": {"a": {}}, "required": ["b"]})",
       R"({"properties": {"a": {}}, "required": ["b"]})"},
      {R"({"items": {"properties": {}}})",
       R"({"items": {"properties": {}, "additionalProperties": false}})"},
      {R"({"anyOf": [{"properties": {}}, true]})",
       R"({"anyOf": [{"properties": {}, "additionalProperties": false}, true]})"},
      {R"({"not": {"properties": {"a": {}}}})", R"({"not": {"properties": {"a": {}}}})"}};
  for (const auto& [schema, want] : schemas) EXPECT_EQ(SchemaOf(schema), want);
}

// If these objects allowed no unlisted properties, no value would be valid.
TEST(AnswerSchema, MergedObjectsStayOpen) {
  for (const std::string schema :
       {R"({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]})",
        R"({"properties": {"x": {"properties": {"a": {}}}}, "anyOf": [{"properties": {"b": {}}}]})",
        R"({"items": {"properties": {"a": {}}, "oneOf": [{"properties": {"b": {}}}]}})",
        R"({"$defs": {"d": {"properties": {"a": {}}}}, "properties": {"b": {}}, )"
        R"("$ref": "#/$defs/d"})"}) {
    EXPECT_EQ(SchemaOf(schema), schema);
  }
}

TEST(AnswerSchema, OnlyAnnotationsOfSchemasAreRemoved) {
  EXPECT_EQ(SchemaOf(R"({"$schema": "x", "$id": "y", "title": "T", "description": "D",
                         "default": {}, "examples": [1], "x-guidance": {"lenient": true},
                         "properties": {"title": {"description": "d", "type": "string"},
                                        "default": true},
                         "enum": [{"title": "kept"}], "const": {"description": "kept"}})"),
            R"({"properties": {"title": {"type": "string"}, "default": true}, )"
            R"("enum": [{"title": "kept"}], "const": {"description": "kept"}, )"
            R"("additionalProperties": false})");
}

TEST(AnswerSchema, ReferencesAreRewrittenToNewPlace) {
  EXPECT_EQ(Parameters(R"({"type": "object", "$defs": {"P": {"items": {"$ref": "#"}}},
                           "properties": {"a": {"$ref": "#/$defs/P"}, "$ref": {"$ref": "#x"},
                                          "c": {"const": {"$ref": "#/$defs/P"}}}})"),
            R"({"type":"object","$defs":{"P":{"items":{"$ref":"#/$defs/f"}}},)"
            R"("properties":{"a":{"$ref":"#/$defs/f/$defs/P"},"$ref":{"$ref":"#x"},)"
            R"("c":{"const":{"$ref":"#/$defs/P"}}},"additionalProperties":false})");
}

TEST(AnswerSchema, ParametersMustBeObject) {
  EXPECT_EQ(Parameters("{}"), R"({"type":"object"})");
  EXPECT_EQ(Parameters(R"({"properties": {"a": {}}})"),
            R"({"type":"object","properties":{"a":{}},"additionalProperties":false})");
  EXPECT_THAT(CallOf(R"({"type": "string"})"), StartsWith("error: type: must be \"object\""));
  EXPECT_THAT(CallOf("true"), StartsWith("error: schema: must be an object"));
  AnswerShape shape;
  shape.calls = {{"f", "p", std::nullopt}};
  std::string out;
  ASSERT_TRUE(AppendAnswerSchema(shape, &out).ok());
  EXPECT_THAT(out, HasSubstr(R"("f": {"type": "object", "properties": {}, )"
                             R"("additionalProperties": false})"));
}

TEST(AnswerSchema, CallsAndSchemaAreAlternatives) {
  const JsonDocument answer = Document(R"({"type": "object", "properties": {}})");
  AnswerShape shape;
  shape.calls = {{"f", "tools[0]", std::nullopt}, {"g", "tools[1]", std::nullopt}};
  shape.schema = answer.root();
  std::string out;
  ASSERT_TRUE(AppendAnswerSchema(shape, &out).ok());
  const std::string none = R"({"type": "object", "properties": {}, "additionalProperties": false})";
  const auto call = [](const std::string& name) {
    return absl::StrCat(R"({"type": "object", "properties": {"name": {"const": ")", name,
                        R"("}, "parameters": {"$ref": "#/$defs/)", name,
                        R"("}}, "required": ["name", "parameters"], )",
                        R"("additionalProperties": false})");
  };
  EXPECT_EQ(out,
            absl::StrCat(R"({"anyOf": [{"$ref": "#/$defs/$call"}, )",
                         R"({"type": "array", "items": {"$ref": "#/$defs/$call"}, )",
                         R"("minItems": 1}, {"$ref": "#/$defs/$answer"}], )",
                         R"("$defs": {"$call": {"anyOf": [)", call("f"), ", ", call("g"),
                         R"(]}, "f": )", none, R"(, "g": )", none, R"(, "$answer": )", none, "}}"));
  EXPECT_THAT(CallOf("{}", /*parallel=*/false), testing::Not(HasSubstr("array")));
}

TEST(AnswerSchema, GrammarErrorsGetBodyPath) {
  AnswerShape shape;
  shape.schema_path = "form.x";
  const SchemaPaths alone = PathsOf(shape);
  shape.calls = {{"f", "tools[0].p", std::nullopt}, {"f-2", "tools[1].p", std::nullopt}};
  const SchemaPaths paths = PathsOf(shape);
  const auto at = [&](const std::string& place) {
    return WithBodyPath("grammar.json_schema: " + place + ": is wrong", paths);
  };
  EXPECT_EQ(at("#/$defs/f"), "tools[0].p: is wrong");
  EXPECT_EQ(at("#/$defs/f-2/anyOf/3/not"), "tools[1].p.anyOf[3].not: is wrong");
  EXPECT_EQ(at("#/$defs/$answer/items"), "form.x.items: is wrong");
  // Names that are no plain words, as worker/text/schema/schema_walk.h writes them.
  EXPECT_EQ(at("#/$defs/f/properties/a%20b:%20c/$defs/A-1"),
            "tools[0].p.properties[\"a b: c\"].$defs.A-1: is wrong");
  EXPECT_EQ(at("#/$defs/f/properties/a~1%25~0/items"),
            "tools[0].p.properties[\"a/%~\"].items: is wrong");
  EXPECT_EQ(at("#/$defs/f/properties//items/10"),
            "tools[0].p.properties[\"\"].items[10]: is wrong");
  EXPECT_EQ(at("#"), "tools: is wrong");
  EXPECT_EQ(at("#/$defs/$call/anyOf"), "tools: is wrong");
  EXPECT_EQ(WithBodyPath("grammar.json_schema: too complex", paths), "tools: too complex");
  EXPECT_EQ(WithBodyPath("grammar.json_schema: #/items/0: is wrong", alone),
            "form.x.items[0]: is wrong");
  EXPECT_EQ(WithBodyPath("grammar.json_schema: too complex", alone), "form.x: too complex");
  EXPECT_EQ(WithBodyPath("grammar: needs a tokenizer", paths), "tools: needs a tokenizer");
  EXPECT_EQ(WithBodyPath("grammar: cannot be combined with sampling.min_tokens 3", alone),
            "form.x: cannot be combined with min_tokens 3");
  for (const char* other : {"grammar.triggers: are too many", "chat: is empty", ""}) {
    EXPECT_EQ(WithBodyPath(other, paths), other);
  }
}

TEST(AnswerSchema, SchemasOver64KiBAreRefused) {
  const auto of = [](size_t names) {
    std::string schema =
        R"({"type": "object", "description": ")" + std::string(100000, 'd') + R"(", "enum": [)";
    for (size_t i = 0; i < names; ++i) absl::StrAppend(&schema, i > 0 ? "," : "", "\"12345678\"");
    return schema + "]}";
  };
  EXPECT_THAT(SchemaOf(of(5000)), StartsWith("{"));
  for (const std::string& error : {SchemaOf(of(6000)), CallOf(of(6000))}) {
    EXPECT_THAT(error, HasSubstr("must have at most 65536 bytes without descriptions"));
  }
}

// The worker also counts the objects around the parameters.
TEST(AnswerSchema, LargestSchemaFitsWorkersLimit) {
  AnswerShape shape;
  std::vector<JsonDocument> documents;
  documents.reserve(128);
  size_t bytes = 0;
  for (size_t i = 0; i < 128; ++i) {
    const std::string name = absl::StrCat(std::string(125, 'n'), 100 + i);
    const size_t more = (kMaxSchemaBytes - bytes) / (128 - i) - name.size() - 50;
    documents.push_back(
        Document(absl::StrCat(R"({"type": "object", "enum": [")", std::string(more, 'e'), "\"]}")));
    shape.calls.push_back({name, "p", documents.back().root()});
    bytes += name.size() + more + 50;
  }
  std::string out;
  const absl::Status status = AppendAnswerSchema(shape, &out);
  ASSERT_TRUE(status.ok()) << status;
  const std::string counted = nlohmann::ordered_json::parse(out).dump();
  EXPECT_GT(counted.size(), kMaxSchemaBytes + 128 * 300);
  EXPECT_LE(counted.size(), SchemaLimits::kBytes);
}

// Schemas whose copy would be very large: the copying must stop near the limit.
TEST(AnswerSchema, HugeSchemasGiveBoundedOutput) {
  std::string deep = "true";
  for (int i = 0; i < 31; ++i) deep = absl::StrCat(R"({"properties": {"a": )", deep, "}}");
  std::string values = "{\"enum\":[0";
  for (int i = 0; i < 250000; ++i) values += ",0";
  const std::string text(1 << 20, 'x');
  std::string wide = "{\"properties\":{\"a\":1";
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&wide, ",\"p", i, "\":{\"$ref\":\"#\"}");
  for (const std::string& schema :
       {deep, wide + "}}", values + "]}", absl::StrCat("{\"", text, "\":1}"),
        absl::StrCat("{\"const\":\"", text, "\"}"), absl::StrCat("{\"$ref\":\"#/", text, "\"}"),
        Repeated(R"({"anyOf":[)", R"({"$ref":"#"})", "]}"),
        Repeated(R"({"anyOf":[)", ObjectOfKeys(1024, "", "{}"), "]}"),
        Repeated(R"({"anyOf":[)", R"({"properties":{"a":{}},"required":["b"]})", "]}")}) {
    EXPECT_LE(SchemaOf(schema).size(), 2 * kMaxSchemaBytes);
    EXPECT_LE(CallOf(schema).size(), 2 * kMaxSchemaBytes);
  }
}

}  // namespace
}  // namespace hearth
