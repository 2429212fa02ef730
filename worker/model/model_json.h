// Parses the JSON files of a model's or an adapter's folder, and gives typed access to the values.
//
// The parse is one pass, linear in the text's length; nlohmann's parse with a callback walks all
// elements of the parent at the end of each object. No function here throws.
// Thread safety: a builder belongs to one thread; the functions are pure.
// Ownership: a builder owns the value until Take.
// Invariants:
//   1. A parsed value has at most kMaxJsonLevels levels: copying, comparing or printing a value
//      recurses once for each level.
//   2. It has at most kMaxJsonValues values, counted before each is allocated.
//   3. No object names a key twice.
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
// its text, so all take at most 84 MB.
inline constexpr size_t kMaxJsonValues = size_t{1} << 19;

// Builds a value from the events of a parse. A subclass may handle events itself.
class ModelJsonBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  // kInvalidArgument: the text is not JSON, or exceeds a limit. REQUIRES: this is the first call.
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
  // Returns whether the next value lies below these keys.
  bool IsAt(std::initializer_list<absl::string_view> keys) const;
  // Ends the parse with this error. Returns false.
  bool Fail(const std::string& what);

 private:
  bool Add(nlohmann::json value);
  bool Begin(nlohmann::json value);
  bool End();

  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;  // the open lists and objects around the next value
  std::vector<std::string> keys_;      // for each of them its last key; empty for a list
  nlohmann::json* place_ = nullptr;    // place of the next value of an object
  nlohmann::json* added_ = nullptr;    // the value added last
  size_t values_ = 0;
  absl::Status status_;
};

// kInvalidArgument: as ModelJsonBuilder. The message names no file.
absl::StatusOr<nlohmann::json> ParseModelJson(absl::string_view text);

// Returns the value at a path of objects; null if there is none.
const nlohmann::json& JsonAt(const nlohmann::json& json, std::initializer_list<const char*> path);

// Returns the value for a message: one line of at most 200 bytes.
std::string JsonExcerpt(const nlohmann::json& value);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_MODEL_JSON_H_
