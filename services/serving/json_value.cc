#include "services/serving/json_value.h"

namespace hearth {

std::string JsonLine(const Json& json) {
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace hearth
