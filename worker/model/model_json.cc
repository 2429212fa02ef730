#include "worker/model/model_json.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxExcerptBytes = 200;

}  // namespace

absl::Status ModelJsonBuilder::Parse(absl::string_view text) {
  if (!Json::sax_parse(text.begin(), text.end(), this)) Fail("is not JSON");
  return status_;
}

bool ModelJsonBuilder::key(string_t& name) {
  const auto [at, is_new] = open_.back()->emplace(name, nullptr);
  if (!is_new) return Fail(absl::StrCat("has the key ", JsonExcerpt(name), " twice"));
  place_ = &*at;
  keys_.back() = std::move(name);
  return true;
}

bool ModelJsonBuilder::parse_error(size_t at, const std::string&,
                                   const nlohmann::detail::exception&) {
  return Fail(absl::StrCat("is not JSON at byte ", at));
}

bool ModelJsonBuilder::IsAt(std::initializer_list<absl::string_view> keys) const {
  return std::equal(keys_.begin(), keys_.end(), keys.begin(), keys.end());
}

bool ModelJsonBuilder::Fail(const std::string& what) {
  if (!status_.ok()) return false;
  const bool has_field = keys_.size() > 1 && !keys_[0].empty();
  status_ = absl::InvalidArgumentError(
      has_field ? absl::StrCat("field ", JsonExcerpt(keys_[0]), ": ", what) : what);
  return false;
}

bool ModelJsonBuilder::Add(Json value) {
  if (++values_ > kMaxJsonValues)
    return Fail(absl::StrCat("has more than ", kMaxJsonValues, " values"));
  if (open_.empty()) {
    root_ = std::move(value);
    added_ = &root_;
  } else if (open_.back()->is_array()) {
    open_.back()->push_back(std::move(value));
    added_ = &open_.back()->back();
  } else {
    *place_ = std::move(value);
    added_ = place_;
  }
  return true;
}

bool ModelJsonBuilder::Begin(Json value) {
  if (open_.size() == kMaxJsonLevels)
    return Fail(absl::StrCat("has more than ", kMaxJsonLevels, " nested levels"));
  if (!Add(std::move(value))) return false;
  open_.push_back(added_);
  keys_.emplace_back();
  return true;
}

bool ModelJsonBuilder::End() {
  open_.pop_back();
  keys_.pop_back();
  return true;
}

absl::StatusOr<Json> ParseModelJson(absl::string_view text) {
  ModelJsonBuilder builder;
  if (absl::Status status = builder.Parse(text); !status.ok()) return status;
  return builder.Take();
}

const Json& JsonAt(const Json& json, std::initializer_list<const char*> path) {
  static const Json kNothing;
  const Json* at = &json;
  for (const char* name : path) {
    if (!at->is_object()) return kNothing;
    const auto found = at->find(name);
    if (found == at->end()) return kNothing;
    at = &*found;
  }
  return *at;
}

std::string JsonExcerpt(const Json& value) {
  constexpr auto kReplace = Json::error_handler_t::replace;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, kReplace);
  if (text.size() <= kMaxExcerptBytes) return text;
  return absl::StrCat(absl::string_view(text).substr(0, kMaxExcerptBytes - 3), "...");
}

}  // namespace hearth
