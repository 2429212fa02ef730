// Walks the schemas inside a JSON schema, and names places in it.
//
// A walk links its places to each other, and makes the text of a place only for an error: the texts
// of all places could need far more memory than the schema.
// Thread safety: pure functions. Ownership: a SchemaPlace borrows its names from the schema, and
// the places above it.
#ifndef HEARTH_WORKER_TEXT_SCHEMA_SCHEMA_WALK_H_
#define HEARTH_WORKER_TEXT_SCHEMA_SCHEMA_WALK_H_

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace hearth {

// SchemaPlace: a place in a schema, as the step that leads to it from the place above.
struct SchemaPlace {
  enum class Step { kRoot, kField, kElement, kNamed };

  SchemaPlace() = default;
  // The value of `keyword` in the schema at *above.
  SchemaPlace(const SchemaPlace* above, absl::string_view keyword)
      : above(above), step(Step::kField), keyword(keyword) {}
  // An element of the list `keyword`.
  SchemaPlace(const SchemaPlace* above, absl::string_view keyword, size_t index)
      : above(above), step(Step::kElement), keyword(keyword), index(index) {}
  // A field of the object `keyword`.
  SchemaPlace(const SchemaPlace* above, absl::string_view keyword, absl::string_view name)
      : above(above), step(Step::kNamed), keyword(keyword), name(name) {}

  // Returns the place as a JSON pointer for an error message, such as "#/properties/a%20b". Long
  // names are cut, and the middle of a long pointer, so it has at most kMaxPlaceBytes.
  std::string Text() const;
  // Returns the place as the value of a $ref, with the only spelling that CheckSchema leaves. The
  // text is at most three times as long as the names in it.
  std::string Reference() const;

  const SchemaPlace* above = nullptr;
  Step step = Step::kRoot;
  absl::string_view keyword, name;
  size_t index = 0;
};

// A gRPC status with details has at most 1,024 bytes of message, so that much room is left for the
// reason. Names of tools, of at most 128 bytes, stay whole.
inline constexpr size_t kMaxPlaceBytes = 512, kMaxPlaceNameBytes = 128;

// Returns `text` for an error message: cut to `most_bytes` at a character, with "..." after the
// cut. Bytes outside of UTF-8 and control characters become "?".
std::string CutText(absl::string_view text, size_t most_bytes = 64);

// Returns kInvalidArgument "grammar.json_schema: PLACE: `what`".
absl::Status RefuseSchema(const SchemaPlace& at, absl::string_view what);

inline bool IsOneOf(absl::string_view name, std::initializer_list<absl::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Keywords that contain schemas: one schema, a list of schemas, or an object of schemas.
inline constexpr std::initializer_list<absl::string_view> kOneSchema = {"items", "additionalItems",
                                                                        "additionalProperties"};
inline constexpr std::initializer_list<absl::string_view> kSchemaLists = {"anyOf", "oneOf", "allOf",
                                                                          "prefixItems", "items"};
inline constexpr std::initializer_list<absl::string_view> kSchemaMaps = {
    "properties", "patternProperties", "$defs", "definitions"};

// Calls `visit(const SchemaPlace&, Schema&)` for each schema directly in `schema`, until `visit`
// returns false. Returns false if `visit` did. The places are valid only during the call.
template <typename Schema, typename Visit>
bool VisitSchemas(const SchemaPlace& at, Schema& schema, const Visit& visit) {
  if (!schema.is_object()) return true;
  for (auto field = schema.begin(); field != schema.end(); ++field) {
    const absl::string_view key = field.key();
    auto& value = field.value();
    if (value.is_array() && IsOneOf(key, kSchemaLists)) {
      for (size_t i = 0; i < value.size(); ++i) {
        if (!visit(SchemaPlace(&at, key, i), value[i])) return false;
      }
    } else if (value.is_object() && IsOneOf(key, kSchemaMaps)) {
      for (auto one = value.begin(); one != value.end(); ++one) {
        if (!visit(SchemaPlace(&at, key, absl::string_view(one.key())), one.value())) return false;
      }
    } else if (IsOneOf(key, kOneSchema)) {
      if (!visit(SchemaPlace(&at, key), value)) return false;
    }
  }
  return true;
}

// Returns whether an object that obeys `schema` can have only the keys that `properties` lists.
// REQUIRES: `schema` is an object.
bool IsClosed(const nlohmann::ordered_json& schema);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_SCHEMA_SCHEMA_WALK_H_
