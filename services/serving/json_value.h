// Json: a value to be written as JSON text. An object's fields keep the order in which they were
// added. json_reader.h reads JSON from untrusted sources.
//
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_SERVING_JSON_VALUE_H_
#define HEARTH_SERVICES_SERVING_JSON_VALUE_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace hearth {

using Json = nlohmann::ordered_json;

// Returns `json` on one line. Invalid UTF-8 becomes U+FFFD; infinity and NaN become null.
std::string JsonLine(const Json& json);

// Appends `text` as a JSON string, quotes included. Bytes that are not UTF-8 become U+FFFD.
void AppendJsonString(absl::string_view text, std::string* out);
// Appends a number; infinite numbers and NaN become null.
void AppendJsonNumber(double number, std::string* out);

// An error message quotes at most this many bytes of a caller's text.
inline constexpr size_t kMaxQuotedBytes = 200;
// Returns `text` as a JSON string for an error message. A longer text is cut and ends with "...".
std::string Quoted(absl::string_view text, size_t most_bytes = kMaxQuotedBytes);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_JSON_VALUE_H_
