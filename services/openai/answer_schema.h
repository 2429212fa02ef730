// Makes the schema of a constrained answer from the schemas that callers send.
//
// A caller's schema is written anew for the grammar:
// - Annotations are left out (title, description, default, ...), and so is x-guidance, which would
//   change the library's own options.
// - "$ref": "#..." leads to where the schema lies in the whole.
// - An object that lists properties and says nothing of others allows no others: models would go on
//   inventing keys. The exceptions are in ClosesObjects.
// - Keys keep their order; the answer has them in the order of `properties`.
// What a keyword means, and which are enforced, is the grammar's (worker/text/grammar.h).
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

// Schemas of one request together, without annotations, in canonical form.
inline constexpr size_t kMaxSchemaBytes = size_t{64} << 10;

// Whether objects of the schema may be closed without making it unsatisfiable: it has no allOf, and
// no properties beside anyOf, oneOf or $ref.
bool ClosesObjects(JsonValue schema);

// A function that the answer may call.
struct CallSchema {
  std::string name;
  std::string path;                     // of the parameters in the body
  std::optional<JsonValue> parameters;  // an object's schema; absent: the object has no fields
};

// What an answer may be. If there are calls and a schema, it may be either.
struct AnswerShape {
  std::vector<CallSchema> calls;
  bool parallel = true;             // also a list of calls
  std::optional<JsonValue> schema;  // an object or a bool
  std::string schema_path;          // in the body
};

// Places in the schema, as JSON pointers, and in the body that they came from.
using SchemaPaths = std::vector<std::pair<std::string, std::string>>;
// The places of the shape's schemas. The last is "#": all the others.
SchemaPaths PathsOf(const AnswerShape& shape);
// "grammar.json_schema at #/$defs/f/items: ..." as "tools[0].function.parameters.items: ...". Other
// messages stay as they are.
std::string WithBodyPath(absl::string_view message, const SchemaPaths& paths);

// Appends the schema as JSON text, at most kMaxSchemaBytes and a frame. kInvalidArgument with the
// path of the schema that is too large, or is not the schema of an object.
// REQUIRES: there is a call or a schema; names are [A-Za-z0-9_-]{1,128}.
absl::Status AppendAnswerSchema(const AnswerShape& shape, std::string* out);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_ANSWER_SCHEMA_H_
