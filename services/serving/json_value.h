// Json: a value to be written as JSON text. An object's fields keep the order in which they were
// added.
#ifndef HEARTH_SERVICES_SERVING_JSON_VALUE_H_
#define HEARTH_SERVICES_SERVING_JSON_VALUE_H_

#include <nlohmann/json.hpp>
#include <string>

namespace hearth {

using Json = nlohmann::ordered_json;

// One line. Bytes that are not UTF-8 become U+FFFD; a number that is infinite or NaN is null.
std::string JsonLine(const Json& json);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_JSON_VALUE_H_
