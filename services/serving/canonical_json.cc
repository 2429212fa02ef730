#include "services/serving/canonical_json.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

// Handles nlohmann's parser events and writes canonical text. An event that returns false ends the
// parsing.
class CanonicalWriter {
 public:
  explicit CanonicalWriter(std::string* out) : out_(out) {}

  // NOLINTBEGIN(readability-identifier-naming): the names are nlohmann's
  using Text = std::string;
  bool null() { return Add("null"); }
  bool boolean(bool value) { return Add(value ? "true" : "false"); }
  // The parser calls number_integer with 0 only for -0.
  bool number_integer(int64_t value) { return Add(absl::StrCat(value == 0 ? "-" : "", value)); }
  bool number_unsigned(uint64_t value) { return Add(absl::StrCat(value)); }
  bool number_float(double /*value*/, const Text& digits) { return Add(digits); }
  bool string(const Text& value) {
    BeginItem();
    AppendJsonString(value, out_);
    return true;
  }
  bool binary(const nlohmann::json::binary_t& /*value*/) {
    return false;
  }  // no JSON text has binary values
  bool start_object(size_t /*size*/) { return Open('{'); }
  bool start_array(size_t /*size*/) { return Open('['); }
  bool key(const Text& value) {
    BeginItem();
    AppendJsonString(value, out_);
    absl::StrAppend(out_, kJsonAfterKey);
    after_key_ = true;
    return true;
  }
  bool end_object() { return Close('}'); }
  bool end_array() { return Close(']'); }
  bool parse_error(size_t /*position*/, const Text& /*last_token*/,
                   const nlohmann::detail::exception& /*error*/) {
    return false;
  }
  // NOLINTEND(readability-identifier-naming)

 private:
  // Begins an item of a list or an object: writes the separator after the item before it.
  void BeginItem() {
    const bool is_value = after_key_;
    after_key_ = false;
    if (is_value || is_empty_.empty()) return;
    if (!is_empty_.back()) absl::StrAppend(out_, kJsonBetweenItems);
    is_empty_.back() = false;
  }
  bool Add(absl::string_view text) {
    BeginItem();
    absl::StrAppend(out_, text);
    return true;
  }
  bool Open(char bracket) {
    if (is_empty_.size() == kMaxCanonicalDepth) return false;
    BeginItem();
    out_->push_back(bracket);
    is_empty_.push_back(true);
    return true;
  }
  bool Close(char bracket) {
    out_->push_back(bracket);
    is_empty_.pop_back();
    return true;
  }

  std::string* const out_;
  std::vector<bool> is_empty_;  // for each open list or object, outermost first
  bool after_key_ = false;
};

}  // namespace

bool AppendCanonicalJson(absl::string_view text, std::string* out) {
  std::string made;
  CanonicalWriter writer(&made);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &writer)) return false;
  absl::StrAppend(out, made);
  return true;
}

}  // namespace hearth
