// Json: a value to be written as JSON text. The only place that knows the library which writes it,
// so that a file with something to say in JSON compiles in little time. Reading what a user wrote
// is not its task.
//
// Thread safety: that of a standard container. Ownership: a value owns all that is in it.
// Invariants: 1. an object's fields keep the order in which they were first named.
#ifndef HEARTH_SERVICES_SERVING_JSON_VALUE_H_
#define HEARTH_SERVICES_SERVING_JSON_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"

namespace hearth {

struct JsonField;

class Json {
 public:
  Json();  // null
  // From what a field may be set to. Implicit, so that json["name"] = value reads as it should.
  Json(bool value);
  Json(int value);
  Json(long value);
  Json(long long value);
  Json(unsigned value);
  Json(unsigned long value);
  Json(unsigned long long value);
  Json(double value);
  Json(const char* text);
  Json(std::string text);
  Json(absl::string_view text);
  template <typename T>
  Json(const T* pointer) = delete;  // would be true
  Json(const std::vector<uint32_t>& numbers);
  Json(const std::vector<std::string>& texts);
  // {{"id", 3}, {"text", "a"}}: an object. Names are not repeated.
  Json(std::initializer_list<JsonField> fields);
  static Json Array();
  static Json Object();
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

  // A field, null when it is new. A null value becomes an object. REQUIRES: null or an object.
  Json& operator[](absl::string_view name);
  // A null value becomes an array. REQUIRES: null or an array.
  void Append(Json value);

  // Null when there is no such field, or this is no object.
  const Json& operator[](absl::string_view name) const;
  const Json* Find(absl::string_view name) const;  // null pointer when there is none
  // REQUIRES: an array with more than `index` items.
  const Json& at(size_t index) const;
  const std::vector<JsonField>& fields() const;  // REQUIRES: an object
  size_t size() const;                           // of an array or object; else 0
  bool is_text() const;
  const std::string& text() const;  // REQUIRES: is_text()
  double number() const;            // REQUIRES: a number

  // Numbers are equal by value, whatever they were set from; objects when their fields also have
  // the same order.
  friend bool operator==(const Json& left, const Json& right) { return left.Equals(right); }
  friend bool operator!=(const Json& left, const Json& right) { return !left.Equals(right); }
  friend std::ostream& operator<<(std::ostream& out, const Json& json) { return json.Print(out); }

 private:
  friend std::string JsonLine(const Json& json);

  bool is_number() const;
  bool Equals(const Json& other) const;
  std::ostream& Print(std::ostream& out) const;
  void WriteTo(std::string* out) const;

  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, std::vector<Json>,
               std::vector<JsonField>>
      value_;
};

struct JsonField {
  std::string name;
  Json value;

  friend bool operator==(const JsonField& left, const JsonField& right) {
    return left.name == right.name && left.value == right.value;
  }
};

// One line. Bytes that are not UTF-8 become U+FFFD; a number that is infinite or none is null.
std::string JsonLine(const Json& json);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_JSON_VALUE_H_
