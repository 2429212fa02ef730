// Canonical JSON: the form of JSON in prompts and in constrained answers.
//
// Canonical JSON has ", " between items, ": " after a key, no other white space, keys in the order
// of the source, and a \u escape only where JSON needs it. An answer that is constrained to a
// schema has this form. So if a client sends the arguments of a call back in another form, the
// prompt still has the tokens of the answer. JsonValue::Write (json_reader.h) writes canonical
// JSON, too. Thread safety: pure functions.
#ifndef HEARTH_SERVICES_SERVING_CANONICAL_JSON_H_
#define HEARTH_SERVICES_SERVING_CANONICAL_JSON_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace hearth {

inline constexpr char kJsonBetweenItems[] = ", ";
inline constexpr char kJsonAfterKey[] = ": ";
inline constexpr size_t kMaxCanonicalDepth = 64;  // maximum nesting of lists and objects

// Appends `text` in canonical form; numbers keep their digits. If `text` is not JSON or is nested
// too deeply, returns false and leaves `out` unchanged. Time and memory are linear in the text.
bool AppendCanonicalJson(absl::string_view text, std::string* out);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CANONICAL_JSON_H_
