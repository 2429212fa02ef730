// Bounds what a checked JSON schema costs llguidance: the nesting of its references, the schemas
// that the library intersects, and the text that an answer must contain.
//
// Thread safety: pure functions. Time is linear in the size of the schema.
#ifndef HEARTH_WORKER_TEXT_SCHEMA_COST_H_
#define HEARTH_WORKER_TEXT_SCHEMA_COST_H_

#include <nlohmann/json.hpp>

#include "absl/status/status.h"

namespace hearth {

// Checks the limits kNesting, kIntersected and kForcedBytes of SchemaLimits. kInvalidArgument names
// the path and the limit. REQUIRES: each $ref in `schema` names a schema in it.
absl::Status CheckSchemaCost(const nlohmann::ordered_json& schema);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_SCHEMA_COST_H_
