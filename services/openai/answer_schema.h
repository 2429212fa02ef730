// Builds the JSON schema of a constrained answer from the schemas in a request.
//
// Each schema of the request is copied with these changes:
// - Annotations (title, description, default, ...) are removed. x-guidance is removed, too, because
//   it would change options of the grammar library.
// - "$ref": "#..." is changed to the place of the schema inside the built schema.
// - An object that lists properties and has no rule for other properties allows no others:
//   otherwise, models keep inventing keys. ClosesObjects has the exceptions.
// - Keys keep their order, because the answer has its keys in the order of `properties`.
// worker/text/grammar.h decides what a keyword means and which keywords are enforced.
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_OPENAI_ANSWER_SCHEMA_H_
#define HEARTH_SERVICES_OPENAI_ANSWER_SCHEMA_H_

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/serving/json_reader.h"

namespace hearth {

// Maximum size of all schemas of a request together, without annotations, in canonical form.
inline constexpr size_t kMaxSchemaBytes = size_t{64} << 10;

// Returns whether the objects of the schema can be closed (allow no unlisted properties) without
// making the schema unsatisfiable: no schema in it has allOf, or has properties together with
// anyOf, oneOf or $ref.
bool ClosesObjects(JsonValue schema);

// A function that the answer is allowed to call.
struct CallSchema {
  std::string name;
  std::string path;                     // path of the parameters in the request's body
  std::optional<JsonValue> parameters;  // schema of an object; absent: an object without fields
};

// The allowed answers. With both calls and a schema, the answer is either calls or JSON of the
// schema.
struct AnswerShape {
  std::vector<CallSchema> calls;
  bool parallel = true;             // a list of calls is allowed, too
  std::string key = "parameters";   // key of the arguments of a call
  std::optional<JsonValue> schema;  // a JSON schema: an object or a bool
  std::string schema_path;          // path of the schema in the request's body
};

// Pairs of a place in the built schema, as a JSON pointer, and its path in the request's body.
using SchemaPaths = std::vector<std::pair<std::string, std::string>>;
// Returns the places of the shape's schemas. The last pair has the place "#": it stands
// for every other place.
SchemaPaths PathsOf(const AnswerShape& shape);
// Replaces the place in an error message of the grammar by the path in the request's body:
// "grammar.json_schema: #/$defs/f/items: ..." becomes "tools[0].function.parameters.items: ...".
// An error about the whole grammar, "grammar: ...", gets the path of the place "#". Returns other
// messages unchanged.
std::string WithBodyPath(absl::string_view message, const SchemaPaths& paths);

// Appends the schema of the answer as JSON text: at most kMaxSchemaBytes of schemas, and the
// objects {"name", key} around them. kInvalidArgument names the path of the schema: the
// schemas are too large, or the parameters are not the schema of an object. REQUIRES: the shape has
// a call or a schema; names match [A-Za-z0-9_-]{1,128}.
absl::Status AppendAnswerSchema(const AnswerShape& shape, std::string* out);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_ANSWER_SCHEMA_H_
