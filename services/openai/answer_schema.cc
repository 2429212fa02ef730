#include "services/openai/answer_schema.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/percent_escapes.h"
#include "services/serving/canonical_json.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

// Names in $defs. They start with "$", so no tool has such a name.
constexpr char kCallDef[] = "$call";
constexpr char kAnswerDef[] = "$answer";

enum class Keyword : uint8_t {
  kPlain,
  kAnnotation,
  kSchemas,  // a schema, or a list of schemas
  kMap,      // an object whose values are schemas; any other value counts as kPlain
  kNegated,  // a schema that an answer may violate, so its objects stay open
};

Keyword KeywordOf(absl::string_view name) {
  constexpr absl::string_view kAnnotations[] = {
      "$comment", "$schema",  "default", "deprecated", "description", "example",
      "examples", "readOnly", "title",   "writeOnly",  "x-guidance"};
  constexpr absl::string_view kSchemas[] = {
      "additionalItems",  "additionalProperties", "allOf", "anyOf", "items", "oneOf", "prefixItems",
      "unevaluatedItems", "unevaluatedProperties"};
  constexpr absl::string_view kMaps[] = {"$defs", "definitions", "patternProperties", "properties"};
  constexpr absl::string_view kNegated[] = {"contains", "else",          "if",
                                            "not",      "propertyNames", "then"};
  const auto has = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (has(kAnnotations)) return Keyword::kAnnotation;
  if (has(kSchemas)) return Keyword::kSchemas;
  if (has(kMaps)) return Keyword::kMap;
  if (has(kNegated) || name == "dependentSchemas" || name == "dependencies") {
    return Keyword::kNegated;
  }
  return Keyword::kPlain;
}

// Returns whether the schema lists properties and has no rule for other properties.
bool LeavesOthersOpen(JsonValue schema) {
  const std::optional<JsonValue> properties = schema.Find("properties");
  if (!properties.has_value() || !properties->is_object()) return false;
  for (const char* const says : {"additionalProperties", "minProperties", "patternProperties",
                                 "propertyNames", "unevaluatedProperties"}) {
    if (schema.Find(says).has_value()) return false;
  }
  const std::optional<JsonValue> required = schema.Find("required");
  if (!required.has_value()) return true;
  for (const JsonValue name : required->elements()) {
    const auto is_name = [&](JsonValue field) { return name.Is(field.name()); };
    bool is_listed = false;
    for (const JsonValue field : properties->fields()) is_listed = is_listed || is_name(field);
    if (!is_listed) return false;
  }
  return true;
}

// SchemaWriter: appends a changed copy of a schema of the request (see answer_schema.h).
//
// Stops soon after the output has more than kMaxSchemaBytes: it then appends at most one more key,
// one more string and the closing brackets. Ownership: borrows the output.
class SchemaWriter {
 public:
  // `base`: place of the schema inside the built schema, such as "/$defs/NAME". `closes`: objects
  // that list properties allow no others.
  SchemaWriter(absl::string_view base, bool closes, std::string* out)
      : base_(base), closes_(closes), out_(out) {}

  // Writes a whole schema without its $id, because references are rewritten to the
  // schema's place in the built schema.
  // `is_parameters`: adds "type": "object" if the schema has no type.
  void WriteRoot(JsonValue schema, bool is_parameters) { Write(schema, true, is_parameters); }

 private:
  void Write(JsonValue schema, bool is_root = false, bool is_parameters = false) {
    if (!schema.is_object()) return Copy(schema);
    bool is_first = true;
    const auto begin = [&](absl::string_view name) { BeginField(name, &is_first); };
    out_->push_back('{');
    if (is_parameters && !schema.Find("type").has_value()) {
      begin("type");
      out_->append("\"object\"");
    }
    for (const JsonValue field : schema.fields()) {
      if (out_->size() > kMaxSchemaBytes) break;
      const Keyword keyword = KeywordOf(field.name());
      if (keyword == Keyword::kAnnotation || (is_root && field.name() == "$id")) continue;
      begin(field.name());
      WriteValue(keyword, field);
    }
    if (closes_ && out_->size() <= kMaxSchemaBytes && LeavesOthersOpen(schema)) {
      begin("additionalProperties");
      out_->append("false");
    }
    out_->push_back('}');
  }
  void BeginField(absl::string_view name, bool* is_first) {
    if (!*is_first) out_->append(kJsonBetweenItems);
    *is_first = false;
    AppendJsonString(name.substr(0, kStopBytes), out_);
    out_->append(kJsonAfterKey);
  }
  void WriteValue(Keyword keyword, JsonValue value) {
    if (keyword == Keyword::kNegated) {
      SchemaWriter open(base_, /*closes=*/false, out_);
      return value.name() == "dependentSchemas" || value.name() == "dependencies"
                 ? open.WriteValue(Keyword::kMap, value)
                 : open.WriteValue(Keyword::kSchemas, value);
    }
    if (keyword == Keyword::kSchemas && value.is_list()) return WriteList(value);
    if (keyword == Keyword::kSchemas) return Write(value);
    if (keyword == Keyword::kMap && value.is_object()) return WriteMap(value);
    const bool is_local = value.name() == "$ref" && value.is_string() &&
                          (value.Is("#") || absl::StartsWith(*value.Text(), "#/"));
    if (!is_local) return Copy(value);
    AppendJsonString(absl::StrCat("#", base_, value.Text()->substr(1, kStopBytes)), out_);
  }
  void WriteList(JsonValue list) {
    out_->push_back('[');
    bool is_first = true;
    for (const JsonValue schema : list.elements()) {
      if (out_->size() > kMaxSchemaBytes) break;
      if (!is_first) out_->append(kJsonBetweenItems);
      is_first = false;
      Write(schema);
    }
    out_->push_back(']');
  }
  void WriteMap(JsonValue map) {
    out_->push_back('{');
    bool is_first = true;
    for (const JsonValue schema : map.fields()) {
      if (out_->size() > kMaxSchemaBytes) break;
      BeginField(schema.name(), &is_first);
      Write(schema);
    }
    out_->push_back('}');
  }

  void Copy(JsonValue value) { value.Write(out_, kStopBytes); }

  // An output of this size is refused, so the rest of the schema is not copied.
  static constexpr size_t kStopBytes = kMaxSchemaBytes + 1;
  const absl::string_view base_;
  const bool closes_;
  std::string* const out_;
};

absl::Status CheckSize(const std::string& schemas, JsonValue last) {
  if (schemas.size() <= kMaxSchemaBytes) return absl::OkStatus();
  return last.Refuse(absl::StrCat("all schemas of a request together must have at most ",
                                  kMaxSchemaBytes, " bytes without descriptions; got more"));
}

// Appends "NAME": SCHEMA for the parameters of a function.
absl::Status AppendParameters(const CallSchema& call, std::string* defs) {
  AppendJsonString(call.name, defs);
  defs->append(kJsonAfterKey);
  if (!call.parameters.has_value()) {
    defs->append(R"({"type": "object", "properties": {}, "additionalProperties": false})");
    return absl::OkStatus();
  }
  const JsonValue schema = *call.parameters;
  if (absl::Status status = schema.CheckObject(); !status.ok()) return status;
  const std::optional<JsonValue> type = schema.Find("type");
  if (type.has_value() && !type->Is("object")) return type->Bad("\"object\"");
  SchemaWriter(absl::StrCat("/$defs/", call.name), ClosesObjects(schema), defs)
      .WriteRoot(schema, /*is_parameters=*/true);
  return CheckSize(*defs, schema);
}

std::string CallFrame(absl::string_view name, absl::string_view key) {
  return absl::StrCat(R"({"type": "object", "properties": {"name": {"const": ")", name, R"("}, ")",
                      key, R"(": {"$ref": "#/$defs/)", name, R"("}}, "required": ["name", ")", key,
                      R"("], "additionalProperties": false})");
}

// Returns the steps of a JSON pointer such as "/properties/a%20b/items/0" as the end of a path in
// the request's body: ".properties[\"a b\"].items[0]".
std::string BodySteps(absl::string_view pointer) {
  std::string made;
  absl::ConsumePrefix(&pointer, "/");
  if (pointer.empty()) return made;
  for (const absl::string_view step : absl::StrSplit(pointer, '/')) {
    const bool is_number = !step.empty() && std::all_of(step.begin(), step.end(), [](char c) {
      return absl::ascii_isdigit(static_cast<unsigned char>(c));
    });
    const std::string name = absl::StrReplaceAll(PercentDecoded(step), {{"~0", "~"}, {"~1", "/"}});
    const bool is_plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '-';
    });
    absl::StrAppend(&made, is_number  ? absl::StrCat("[", name, "]")
                           : is_plain ? absl::StrCat(".", name)
                                      : absl::StrCat("[", Quoted(name, 64), "]"));
  }
  return made;
}

std::string Ref(absl::string_view name) {
  return absl::StrCat("{\"$ref\": \"#/$defs/", name, "\"}");
}

}  // namespace

bool ClosesObjects(JsonValue schema) {
  const auto closes = [](JsonValue inner) { return ClosesObjects(inner); };
  const auto all = [&](JsonValue::Range range) {
    bool all_close = true;
    for (const JsonValue inner : range) all_close = all_close && closes(inner);
    return all_close;
  };
  const bool has_properties = schema.Find("properties").has_value();
  for (const JsonValue field : schema.fields()) {
    const absl::string_view name = field.name();
    if (name == "allOf") return false;
    if (has_properties && (name == "anyOf" || name == "oneOf" || name == "$ref")) return false;
    const Keyword keyword = KeywordOf(name);
    if (keyword == Keyword::kSchemas && !(field.is_list() ? all(field.elements()) : closes(field)))
      return false;
    if (keyword == Keyword::kMap && !all(field.fields())) return false;
  }
  return true;
}

SchemaPaths PathsOf(const AnswerShape& shape) {
  SchemaPaths paths;
  for (const CallSchema& call : shape.calls) {
    paths.emplace_back(absl::StrCat("#/$defs/", call.name), call.path);
  }
  if (shape.calls.empty()) return {{"#", shape.schema_path}};
  paths.emplace_back(absl::StrCat("#/$defs/", kAnswerDef), shape.schema_path);
  paths.emplace_back("#", "tools");
  return paths;
}

std::string WithBodyPath(absl::string_view message, const SchemaPaths& paths) {
  const absl::string_view whole = message;
  if (!paths.empty() && absl::ConsumePrefix(&message, "grammar: ")) {
    // The body has the fields of sampling at its root.
    return absl::StrCat(paths.back().second, ": ",
                        absl::StrReplaceAll(message, {{" sampling.", " "}}));
  }
  if (paths.empty() || !absl::ConsumePrefix(&message, "grammar.json_schema: ")) {
    return std::string(whole);
  }
  const bool has_place = !message.empty() && message.front() == '#';
  const absl::string_view pointer = has_place ? message.substr(0, message.find(": ")) : "#";
  if (has_place) message.remove_prefix(std::min(pointer.size() + 2, message.size()));
  for (const auto& [place, path] : paths) {
    absl::string_view rest = pointer;
    const bool is_last = place == paths.back().first;
    const bool is_inside =
        absl::ConsumePrefix(&rest, place) && (rest.empty() || rest.front() == '/');
    if (!is_inside && !is_last) continue;
    if (!is_inside || (is_last && paths.size() > 1)) rest = "";  // a place outside the schemas
    return absl::StrCat(path, BodySteps(rest), ": ", message);
  }
  return std::string(whole);
}

absl::Status AppendAnswerSchema(const AnswerShape& shape, std::string* out) {
  if (shape.calls.empty()) {
    assert(shape.schema.has_value());
    std::string made;
    SchemaWriter("", ClosesObjects(*shape.schema), &made)
        .WriteRoot(*shape.schema, /*is_parameters=*/false);
    if (absl::Status status = CheckSize(made, *shape.schema); !status.ok()) return status;
    out->append(made);
    return absl::OkStatus();
  }
  std::string defs, frames;
  for (const CallSchema& call : shape.calls) {
    if (!defs.empty()) defs.append(kJsonBetweenItems);
    if (absl::Status status = AppendParameters(call, &defs); !status.ok()) return status;
    absl::StrAppend(&frames, frames.empty() ? "" : kJsonBetweenItems,
                    CallFrame(call.name, shape.key));
  }
  std::string answers = Ref(kCallDef);
  if (shape.parallel) {
    absl::StrAppend(&answers, R"(, {"type": "array", "items": )", Ref(kCallDef),
                    R"(, "minItems": 1})");
  }
  if (shape.schema.has_value()) {
    absl::StrAppend(&defs, kJsonBetweenItems, "\"", kAnswerDef, "\"", kJsonAfterKey);
    SchemaWriter(absl::StrCat("/$defs/", kAnswerDef), ClosesObjects(*shape.schema), &defs)
        .WriteRoot(*shape.schema, /*is_parameters=*/false);
    if (absl::Status status = CheckSize(defs, *shape.schema); !status.ok()) return status;
    absl::StrAppend(&answers, kJsonBetweenItems, Ref(kAnswerDef));
  }
  absl::StrAppend(out, "{\"anyOf\": [", answers, "], \"$defs\": {\"", kCallDef, "\": {\"anyOf\": [",
                  frames, "]}, ", defs, "}}");
  return absl::OkStatus();
}

}  // namespace hearth
