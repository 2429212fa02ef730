#include "services/serving/json_value.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace hearth {

std::string JsonLine(const Json& json) {
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

void AppendJsonString(absl::string_view text, std::string* out) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
  });
  if (is_plain) {
    absl::StrAppend(out, "\"", text, "\"");
  } else {
    out->append(JsonLine(Json(std::string(text))));
  }
}

void AppendJsonNumber(double number, std::string* out) { out->append(JsonLine(Json(number))); }

std::string Quoted(absl::string_view text, size_t most_bytes) {
  size_t end = std::min(text.size(), most_bytes);
  const auto is_inside = [&](size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  // Move the cut back to the beginning of a character, at most three bytes. Text that is not UTF-8
  // is cut anywhere.
  for (int i = 0; i < 3 && end > 0 && end < text.size() && is_inside(end); ++i) --end;
  std::string quoted;
  AppendJsonString(text.substr(0, end), &quoted);
  return end < text.size() ? quoted + "..." : quoted;
}

}  // namespace hearth
