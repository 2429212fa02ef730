#include "services/serving/json_value.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// Hard to write by hand: text with its escapes, and a number's shortest exact digits.
std::string ScalarText(const nlohmann::json& scalar) {
  return scalar.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

const Json& NullJson() {
  static const Json* const null = new Json();
  return *null;
}

}  // namespace

Json::Json() = default;
Json::Json(bool value) : value_(value) {}
Json::Json(int value) : value_(int64_t{value}) {}
Json::Json(long value) : value_(int64_t{value}) {}
Json::Json(long long value) : value_(int64_t{value}) {}
Json::Json(unsigned value) : value_(uint64_t{value}) {}
Json::Json(unsigned long value) : value_(uint64_t{value}) {}
Json::Json(unsigned long long value) : value_(uint64_t{value}) {}
Json::Json(double value) : value_(value) {}
Json::Json(const char* text) : value_(std::string(text)) {}
Json::Json(std::string text) : value_(std::move(text)) {}
Json::Json(absl::string_view text) : value_(std::string(text)) {}
Json::Json(const std::vector<uint32_t>& numbers)
    : value_(std::vector<Json>(numbers.begin(), numbers.end())) {}
Json::Json(const std::vector<std::string>& texts)
    : value_(std::vector<Json>(texts.begin(), texts.end())) {}
Json::Json(std::initializer_list<JsonField> fields) : value_(std::vector<JsonField>(fields)) {}
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

Json Json::Array() {
  Json json;
  json.value_ = std::vector<Json>();
  return json;
}

Json Json::Object() {
  Json json;
  json.value_ = std::vector<JsonField>();
  return json;
}

Json& Json::operator[](absl::string_view name) {
  if (std::holds_alternative<std::monostate>(value_)) value_ = std::vector<JsonField>();
  auto& fields = std::get<std::vector<JsonField>>(value_);
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [name](const JsonField& field) { return field.name == name; });
  if (found != fields.end()) return found->value;
  return fields.emplace_back(JsonField{std::string(name), Json()}).value;
}

void Json::Append(Json value) {
  if (std::holds_alternative<std::monostate>(value_)) value_ = std::vector<Json>();
  std::get<std::vector<Json>>(value_).push_back(std::move(value));
}

const Json* Json::Find(absl::string_view name) const {
  const auto* fields = std::get_if<std::vector<JsonField>>(&value_);
  if (fields == nullptr) return nullptr;
  for (const JsonField& field : *fields) {
    if (field.name == name) return &field.value;
  }
  return nullptr;
}

const Json& Json::operator[](absl::string_view name) const {
  const Json* found = Find(name);
  return found == nullptr ? NullJson() : *found;
}

const Json& Json::at(size_t index) const { return std::get<std::vector<Json>>(value_).at(index); }

const std::vector<JsonField>& Json::fields() const {
  return std::get<std::vector<JsonField>>(value_);
}

size_t Json::size() const {
  if (const auto* items = std::get_if<std::vector<Json>>(&value_)) return items->size();
  if (const auto* fields = std::get_if<std::vector<JsonField>>(&value_)) return fields->size();
  return 0;
}

bool Json::is_text() const { return std::holds_alternative<std::string>(value_); }

const std::string& Json::text() const { return std::get<std::string>(value_); }

bool Json::is_number() const {
  return std::holds_alternative<int64_t>(value_) || std::holds_alternative<uint64_t>(value_) ||
         std::holds_alternative<double>(value_);
}

double Json::number() const {
  if (const int64_t* value = std::get_if<int64_t>(&value_)) return static_cast<double>(*value);
  if (const uint64_t* value = std::get_if<uint64_t>(&value_)) return static_cast<double>(*value);
  return std::get<double>(value_);
}

bool Json::Equals(const Json& other) const {
  if (value_.index() == other.value_.index()) return value_ == other.value_;
  if (!is_number() || !other.is_number()) return false;
  const int64_t* left = std::get_if<int64_t>(&value_);
  const int64_t* right = std::get_if<int64_t>(&other.value_);
  const uint64_t* big = std::get_if<uint64_t>(left != nullptr ? &other.value_ : &value_);
  if (left == nullptr) left = right;
  if (left == nullptr || big == nullptr) return number() == other.number();
  return *left >= 0 && static_cast<uint64_t>(*left) == *big;
}

void Json::WriteTo(std::string* out) const {
  if (std::holds_alternative<std::monostate>(value_)) {
    *out += "null";
  } else if (const bool* truth = std::get_if<bool>(&value_)) {
    *out += *truth ? "true" : "false";
  } else if (const int64_t* number = std::get_if<int64_t>(&value_)) {
    absl::StrAppend(out, *number);
  } else if (const uint64_t* count = std::get_if<uint64_t>(&value_)) {
    absl::StrAppend(out, *count);
  } else if (const double* real = std::get_if<double>(&value_)) {
    *out += ScalarText(*real);
  } else if (is_text()) {
    *out += ScalarText(text());
  } else if (const auto* items = std::get_if<std::vector<Json>>(&value_)) {
    *out += '[';
    for (const Json& item : *items) {
      if (&item != &items->front()) *out += ',';
      item.WriteTo(out);
    }
    *out += ']';
  } else {
    *out += '{';
    for (const JsonField& field : fields()) {
      if (&field != &fields().front()) *out += ',';
      absl::StrAppend(out, ScalarText(field.name), ":");
      field.value.WriteTo(out);
    }
    *out += '}';
  }
}

std::ostream& Json::Print(std::ostream& out) const { return out << JsonLine(*this); }

std::string JsonLine(const Json& json) {
  std::string line;
  json.WriteTo(&line);
  return line;
}

}  // namespace hearth
