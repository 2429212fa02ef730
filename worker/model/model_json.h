// Parses the JSON files in the folder of a model or an adapter.
//
// Parsing is a single pass, linear in the length of the text; nlohmann's parser with a callback is
// not, because after each object it iterates over all elements of the parent. No function in this
// file throws.
// Thread safety: one thread at a time uses a builder; the functions are pure.
// Ownership: a builder owns the parsed value until Take.
// Invariants:
//   1. A parsed value has at most kMaxJsonLevels nested levels, because copying, comparing
//      and printing a value are recursive.
//   2. A parsed value has at most kMaxJsonValues values; the limit is checked before each
//      allocation.
//   3. No object has the same key twice.
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
// Gemma 3's tokenizer_config.json has 51,000 values. A value takes at most 160 bytes in addition to
// its text, so 2^19 values take at most 84 MB.
inline constexpr size_t kMaxJsonValues = size_t{1} << 19;

// Builds a JSON value from parser events. A subclass may override event methods.
class ModelJsonBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  // kInvalidArgument: the text is not JSON, or exceeds a limit. Call at most once.
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
  // Returns whether `keys` is the path to the next value.
  bool IsAt(std::initializer_list<absl::string_view> keys) const;
  // Stops the parse with this error, and returns false.
  bool Fail(const std::string& what);

 private:
  bool Add(nlohmann::json value);
  bool Begin(nlohmann::json value);
  bool End();

  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;  // the lists and objects that enclose the next value
  std::vector<std::string> keys_;      // for each element of open_: its last key; empty for a list
  nlohmann::json* place_ = nullptr;    // where the next value of an object is stored
  nlohmann::json* added_ = nullptr;    // the value added last
  size_t values_ = 0;
  absl::Status status_;
};

// Parses a text. kInvalidArgument: the text is not JSON, or exceeds a limit; the message names no
// file.
absl::StatusOr<nlohmann::json> ParseModelJson(absl::string_view text);

// Returns the value at a path of keys; null if there is none.
const nlohmann::json& JsonAt(const nlohmann::json& json, std::initializer_list<const char*> path);

// Returns the value as text for an error message: one line of at most 200 bytes.
std::string JsonExcerpt(const nlohmann::json& value);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_MODEL_JSON_H_
