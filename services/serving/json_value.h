// Json: a value to be written as JSON text. An object's fields keep the order in which they were
// added. JSON from outside is read by json_reader.h.
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

// One line. Bytes that are not UTF-8 become U+FFFD; a number that is infinite or NaN is null.
std::string JsonLine(const Json& json);

// Appends `text` as a JSON string, quotes included. Bytes that are not UTF-8 become U+FFFD.
void AppendJsonString(absl::string_view text, std::string* out);
// Appends a number; one that is infinite or NaN is null.
void AppendJsonNumber(double number, std::string* out);

// An error message quotes at most this many bytes of a caller's text.
inline constexpr size_t kMaxQuotedBytes = 200;
// `text` as a JSON string for an error message. A longer text is cut between two characters and
// ends with "...".
std::string Quoted(absl::string_view text, size_t most_bytes = kMaxQuotedBytes);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_JSON_VALUE_H_
