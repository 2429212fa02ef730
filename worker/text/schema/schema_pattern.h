// Measures a regular expression of a JSON schema without compiling it.
//
// Thread safety: pure functions. Time is linear in the pattern.
#ifndef HEARTH_WORKER_TEXT_SCHEMA_SCHEMA_PATTERN_H_
#define HEARTH_WORKER_TEXT_SCHEMA_SCHEMA_PATTERN_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace hearth {

// Returns the greatest number in {n}, {n,} and {n,m} of a pattern, at most 2^32. A brace that is
// text counts, too.
uint64_t GreatestRepetition(absl::string_view pattern);

// Returns the number of classes such as \p{L}, which have hundreds of ranges of characters.
size_t UnicodeClasses(absl::string_view pattern);

// Returns why a pattern is refused before the grammar library reads the pattern; "": it is not
// refused.
absl::string_view PatternFault(absl::string_view pattern);

// Returns at most the number of characters of the shortest text that matches a pattern; at most
// 2^40. REQUIRES: the pattern has no fault, and the library has compiled the pattern.
uint64_t ShortestMatch(absl::string_view pattern);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_SCHEMA_SCHEMA_PATTERN_H_
