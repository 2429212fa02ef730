// Checks a JSON schema before llguidance compiles it, and reduces it to what llguidance enforces.
//
// Thread safety: pure functions. Errors are kInvalidArgument; the message names the path in the
// schema, as a JSON pointer, and the limit. A limit is checked before memory for the limited part
// is allocated.
#ifndef HEARTH_WORKER_TEXT_SCHEMA_SCHEMA_CHECK_H_
#define HEARTH_WORKER_TEXT_SCHEMA_SCHEMA_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hearth {

// Limits of a schema, so that it compiles within 250 ms into a grammar of at most 64 MiB.
struct SchemaLimits {
  static constexpr size_t kTextBytes = size_t{1} << 20;  // JSON text with its descriptions
  // JSON text without descriptions: 64 KiB for the schemas of a chat's tools, and 416 bytes for the
  // call of each of 128 tools (about 146 bytes, and twice a name of up to 128 bytes).
  // proto/state_format.h has the same limit.
  static constexpr size_t kBytes = (size_t{64} << 10) + size_t{128} * 416;
  static constexpr size_t kDepth = 64;          // nesting of the JSON text
  static constexpr size_t kKeys = 1024;         // keys of each object of the JSON text
  static constexpr size_t kValues = 20'000;     // values in the JSON text
  static constexpr size_t kNodes = 5'000;       // schemas in the schema, including itself
  static constexpr size_t kProperties = 1'000;  // properties of an object
  static constexpr size_t kOptional = 400;      // optional properties of an object
  static constexpr size_t kBranches = 256;      // schemas in an anyOf, oneOf, allOf or prefixItems
  static constexpr size_t kEnumValues = 1'000;  // values of an enum
  static constexpr size_t kStructures = 1'000;  // arrays and objects in all const and enum
  static constexpr size_t kEnumBytes = size_t{32} << 10;  // JSON text of an enum or const
  static constexpr size_t kPatternBytes = 512;            // bytes of a pattern
  static constexpr uint64_t kRepetition = 1'000;          // largest number in {n,m} of a pattern
  static constexpr size_t kPatterns = 64;                 // patterns in the schema
  static constexpr size_t kUnicodeClasses = 64;           // classes such as \p{L} in all patterns
  static constexpr size_t kPatternProperties = 16;        // patternProperties of an object
  static constexpr uint64_t kCount = 1'000'000;  // largest minItems, maxLength or other count
  // largest multipleOf without its decimal point: 25 for 2.5
  static constexpr uint64_t kMultipleOf = 10'000;
  // largest sum of all multipleOf, each without its decimal point
  static constexpr uint64_t kMultiplesOf = 20'000;
  // Nesting of schemas inside schemas and through $ref. The library recurses: at 2,000 levels it
  // uses 8 MiB of stack.
  static constexpr uint64_t kNesting = 256;
  // Schemas that the library compiles, in about 50 us each: some count several times (PriceOf in
  // schema_cost.cc), and the target of a $ref counts again with all schemas in it.
  static constexpr uint64_t kCompiled = 6'000;
  static constexpr uint64_t kStringPatterns = 4;  // patterns and formats that one string must obey
  // Optional properties of a closed object that must have one more property than the required ones:
  // the library needs about the square of items in a row of its parser, which has 2,000.
  static constexpr uint64_t kChosen = 44;
  // Limit of the copies that the library makes to intersect schemas. A copy of a schema counts 25
  // (at most 75 us), a copy of a JSON value of const or enum counts 1 (260 bytes).
  static constexpr uint64_t kIntersected = 75'000;
  static constexpr uint64_t kForcedBytes = size_t{64} << 10;  // bytes of a schema's shortest text
};

// Returns the schema as an object that contains only the enforced keywords, in the order of `text`.
// Adds `additionalProperties: false` to objects that have `properties` but not
// `additionalProperties`, unless this could make the schema unsatisfiable. Checking the result
// again does not change it. A keyword that cannot be enforced is an error; if `lenient`, the
// keyword is dropped. `error_of` returns why a schema cannot be compiled, or "" if it can.
absl::StatusOr<std::string> CheckSchema(
    std::string_view text, bool lenient,
    absl::FunctionRef<std::string(const std::string&)> error_of);

// Returns the path, such as "#/properties/a", of the innermost schema in `checked` whose
// compilation gives `error`. `checked`: a result of CheckSchema.
std::string FindError(const std::string& checked, const std::string& error,
                      absl::FunctionRef<std::string(const std::string&)> error_of);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_SCHEMA_SCHEMA_CHECK_H_
