// Parses the JSON files of a model's or an adapter's folder, and gives typed access to the values.
//
// The parse is one pass whose time grows with the text's length alone: nlohmann's parse with a
// callback walks all elements of the parent at the end of each object. No function here throws.
// Thread safety: a builder belongs to one thread; the functions are pure.
// Ownership: a builder owns the value until Take.
// Invariants: (1) a parsed value has at most kMaxJsonLevels levels, since copying, comparing or
// printing a value takes a stack for each level; (2) it has at most kMaxJsonValues values, counted
// before each is allocated; (3) no object of it names a key twice.
#ifndef HEARTH_WORKER_MODEL_MODEL_JSON_H_
#define HEARTH_WORKER_MODEL_MODEL_JSON_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace hearth {

inline constexpr size_t kMaxJsonLevels = 64;
// The tokenizer_config.json of Gemma 3 has 51,000 values. A value takes at most 160 bytes beside
// its text, so that all take at most 84 MB.
inline constexpr size_t kMaxJsonValues = size_t{1} << 19;

// Builds a value from the events of a parse. A subclass may take events for itself.
class ModelJsonBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  // kInvalidArgument: the text is no JSON, or breaks a limit. REQUIRES: the first call.
  absl::Status Parse(absl::string_view text);
  nlohmann::json Take() { return std::move(root_); }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return Fail("is not JSON"); }
  bool start_object(size_t) override { return Begin(nlohmann::json::object()); }
  bool key(string_t& name) override;
  bool end_object() override { return End(); }
  bool start_array(size_t) override { return Begin(nlohmann::json::array()); }
  bool end_array() override { return End(); }
  bool parse_error(size_t at, const std::string& token,
                   const nlohmann::detail::exception& error) override;

 protected:
  // Whether the value that comes next lies below these keys.
  bool IsAt(std::initializer_list<absl::string_view> keys) const;
  // Ends the parse with this error. Returns false.
  bool Fail(const std::string& what);

 private:
  bool Add(nlohmann::json value);
  bool Begin(nlohmann::json value);
  bool End();

  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;  // the lists and objects that the next value lies in
  std::vector<std::string> keys_;      // of each, the last key; empty in a list
  nlohmann::json* place_ = nullptr;    // for the next value of an object
  nlohmann::json* added_ = nullptr;    // the last value
  size_t values_ = 0;
  absl::Status status_;
};

// kInvalidArgument: as ModelJsonBuilder. The message names no file.
absl::StatusOr<nlohmann::json> ParseModelJson(absl::string_view text);

// The value at a path of objects; null if there is none.
const nlohmann::json& JsonAt(const nlohmann::json& json, std::initializer_list<const char*> path);

// The value as a message may show it: one line of at most 200 bytes.
std::string JsonExcerpt(const nlohmann::json& value);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_MODEL_JSON_H_
