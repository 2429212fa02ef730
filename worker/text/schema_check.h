// Checks a JSON schema before llguidance compiles it, and reduces it to what llguidance enforces.
//
// Thread safety: pure functions. Errors are kInvalidArgument: they name the path in the schema, as
// a JSON pointer, and the limit. Limits are counted before memory is taken for what they limit.
#ifndef HEARTH_WORKER_TEXT_SCHEMA_CHECK_H_
#define HEARTH_WORKER_TEXT_SCHEMA_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hearth {

// Each keeps compiling below 250 ms and a grammar below 64 MiB.
struct SchemaLimits {
  static constexpr size_t kTextBytes = size_t{1} << 20;   // with descriptions and other annotations
  static constexpr size_t kBytes = size_t{64} << 10;      // without
  static constexpr size_t kDepth = 64;                    // of the JSON text
  static constexpr size_t kKeys = 1024;                   // of any object of the JSON text
  static constexpr size_t kValues = 20'000;               // of the JSON text
  static constexpr size_t kNodes = 5'000;                 // schemas
  static constexpr size_t kProperties = 1'000;            // of an object
  static constexpr size_t kOptional = 400;                // of these
  static constexpr size_t kBranches = 256;                // of anyOf, oneOf, allOf
  static constexpr size_t kEnumValues = 1'000;            // of an enum
  static constexpr size_t kEnumBytes = size_t{32} << 10;  // likewise
  static constexpr size_t kPatternBytes = 512;
  static constexpr uint64_t kRepetition = 1'000;    // in a pattern: {n}
  static constexpr size_t kPatterns = 64;           // of the schema
  static constexpr size_t kPatternProperties = 16;  // of an object
  static constexpr uint64_t kCount = 1'000'000;     // minItems, maxLength and the like
  static constexpr uint64_t kMultipleOf = 10'000;   // the number's digits, as a whole number
  static constexpr uint64_t kMultiplesOf = 20'000;  // all together
};

// Returns the schema as an object of the keywords that are enforced, in the given order, with
// `additionalProperties: false` in objects that list `properties` and say nothing of others;
// checked again, it stays as it is. A keyword that cannot be enforced is an error, or dropped if
// `lenient`. `error_of`: why a schema cannot be compiled; empty: it can.
absl::StatusOr<std::string> CheckSchema(
    std::string_view text, bool lenient,
    absl::FunctionRef<std::string(const std::string&)> error_of);

// The path of the innermost schema in a checked one whose compilation gives `error`:
// "#/properties/a".
std::string FindError(const std::string& checked, const std::string& error,
                      absl::FunctionRef<std::string(const std::string&)> error_of);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_SCHEMA_CHECK_H_
