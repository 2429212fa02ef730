// Resolves the references of a JSON schema, and bounds what the schema costs llguidance: the
// nesting of its references, the schemas that the library compiles and intersects, and the text
// that an answer must contain.
//
// Thread safety: pure functions. Time is linear in the size of the schema, times the nesting of
// references that lead to each other.
#ifndef HEARTH_WORKER_TEXT_SCHEMA_SCHEMA_COST_H_
#define HEARTH_WORKER_TEXT_SCHEMA_SCHEMA_COST_H_

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"

namespace hearth {

// Checks that each $ref names a schema, and the limits from kNesting on of SchemaLimits.
// kInvalidArgument names the path and the limit. Changes the spelling of a $ref to the only one
// that a schema has: "#/$defs/a" for "#/%24defs/a". Returns the cost of compiling the schema, in
// about 3 us. REQUIRES: the checks of CheckSchema that need no reference.
absl::StatusOr<uint64_t> CheckSchemaCost(nlohmann::ordered_json* schema);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_SCHEMA_SCHEMA_COST_H_
