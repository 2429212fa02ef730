#include "worker/text/schema/schema_check.h"

#include <algorithm>
#include <cassert>
#include <climits>
#include <cmath>
#include <deque>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "worker/text/schema/schema_cost.h"
#include "worker/text/schema/schema_pattern.h"
#include "worker/text/schema/schema_walk.h"

namespace hearth {
namespace {

using Json = nlohmann::ordered_json;
using CompileError = absl::FunctionRef<std::string(const std::string&)>;

absl::Status TooMany(const SchemaPlace& at, absl::string_view what, size_t most, uint64_t count) {
  return RefuseSchema(at, absl::StrCat("must have at most ", most, " ", what, "; got ", count));
}

// Maximum bytes of a name, and of an error of the library, that an error message quotes.
constexpr size_t kQuotedNameBytes = 64, kQuotedErrorBytes = 256;

// --- the JSON text ---

constexpr char kNotDouble[] = "numbers must fit a double";

// TextCounter: counts the values and keys of a JSON text, and stops parsing at the first exceeded
// limit and at the first key that its object has twice.
class TextCounter : public nlohmann::json_sax<Json> {
 public:
  const absl::Status& status() const { return status_; }

  bool null() override { return Value(); }
  bool boolean(bool /*value*/) override { return Value(); }
  bool number_integer(number_integer_t /*value*/) override { return Value(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return Value(); }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return std::isfinite(value) ? Value() : Stop(kNotDouble);
  }
  bool string(string_t& /*value*/) override { return Value(); }
  bool binary(binary_t& /*value*/) override { return Value(); }
  bool start_object(size_t /*count*/) override { return Open(); }
  bool start_array(size_t /*count*/) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    assert(!open_.empty());
    Level& level = open_.back();
    if (level.keys.size() == SchemaLimits::kKeys) {
      return Stop(absl::StrCat("an object must have at most ", SchemaLimits::kKeys, " keys"));
    }
    if (!level.keys.insert(name).second) {
      return StopAtObject(absl::StrCat("must not have the key \"", CutText(name), "\" twice"));
    }
    level.key = std::move(name);
    return true;
  }
  bool parse_error(size_t at, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    return Stop(error.id == 406 ? kNotDouble : absl::StrCat("is not valid JSON at byte ", at));
  }

 private:
  struct Level {
    absl::flat_hash_set<std::string> keys;  // of an object
    std::string key;                        // the current key
    size_t elements = 0;                    // values so far
  };

  bool Value() {
    if (!open_.empty()) ++open_.back().elements;
    if (++values_ <= SchemaLimits::kValues) return true;
    return Stop(absl::StrCat("must have at most ", SchemaLimits::kValues, " JSON values"));
  }
  bool Open() {
    if (!Value()) return false;
    open_.emplace_back();
    if (open_.size() <= SchemaLimits::kDepth) return true;
    return Stop(absl::StrCat("must be at most ", SchemaLimits::kDepth, " levels deep"));
  }
  bool Close() {
    assert(!open_.empty());
    open_.pop_back();
    return true;
  }
  bool Stop(absl::string_view error) {
    if (status_.ok()) status_ = RefuseSchema(SchemaPlace(), error);
    return false;
  }
  // Stops with an error that names the innermost open object.
  bool StopAtObject(absl::string_view error) {
    std::vector<SchemaPlace> path(open_.size());
    std::vector<std::string> numbers(open_.size());
    for (size_t i = 0; i + 1 < open_.size(); ++i) {
      const bool is_list = open_[i].keys.empty();
      assert(!is_list || open_[i].elements > 0);
      if (is_list) numbers[i] = absl::StrCat(open_[i].elements - 1);
      path[i + 1] = SchemaPlace(&path[i], is_list ? numbers[i] : open_[i].key);
    }
    assert(status_.ok());
    status_ = RefuseSchema(path.back(), error);
    return false;
  }

  std::vector<Level> open_;
  size_t values_ = 0;
  absl::Status status_;
};

absl::StatusOr<Json> ParseText(std::string_view text) {
  if (text.size() > SchemaLimits::kTextBytes) {
    return TooMany(SchemaPlace(), "bytes", SchemaLimits::kTextBytes, text.size());
  }
  TextCounter counter;
  if (!Json::sax_parse(text, &counter)) return counter.status();
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// --- keywords ---

// Keywords that restrict values but that llguidance does not enforce.
constexpr std::initializer_list<absl::string_view> kNotEnforced = {
    "not",           "if",
    "then",          "else",
    "contains",      "minContains",
    "maxContains",   "propertyNames",
    "dependencies",  "dependentRequired",
    "uniqueItems",   "dependentSchemas",
    "$dynamicRef",   "unevaluatedItems",
    "$recursiveRef", "unevaluatedProperties"};
constexpr std::initializer_list<absl::string_view> kFormats = {
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"};
constexpr std::initializer_list<absl::string_view> kTypes = {
    "null", "boolean", "integer", "number", "string", "array", "object"};
constexpr std::initializer_list<absl::string_view> kCounts = {
    "minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength"};
constexpr std::initializer_list<absl::string_view> kBounds = {
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};

// Keywords that restrict no values; $ref in any schema may need them.
constexpr std::initializer_list<absl::string_view> kShared = {"$defs", "definitions", "$schema"};

// Returns the value of a number's digits without decimal point and negative exponent: 25 for 2.5,
// 10 for 10.0. Returns UINT64_MAX if the number is too large or has too many digits.
uint64_t Digits(const Json& number) {
  std::string text = number.dump();
  if (absl::StrContains(text, "e+")) return UINT64_MAX;
  text = text.substr(0, text.find('e'));
  if (absl::StrContains(text, '.')) text.erase(text.find_last_not_of('0') + 1);
  text.erase(std::remove(text.begin(), text.end(), '.'), text.end());
  uint64_t digits = 0;
  return absl::SimpleAtoi(text, &digits) ? digits : UINT64_MAX;
}

// Returns the number of decimal places: 1 for 2.5, 7 for 1e-7. REQUIRES: Digits(number) is small.
int Places(const Json& number) {
  std::string text = number.dump();
  int exponent = 0;
  if (const size_t e = text.find("e-"); e != text.npos) {
    if (!absl::SimpleAtoi(text.substr(e + 2), &exponent)) exponent = INT_MAX / 2;
    text.erase(e);
  }
  const size_t point = text.find('.');
  if (point == text.npos) return exponent;
  text.erase(text.find_last_not_of('0') + 1);
  return exponent + static_cast<int>(text.size() - point - 1);
}

// Returns the least common multiple of numbers with decimal places, without its decimal point.
// Returns UINT64_MAX if it is large.
uint64_t LeastCommonMultiple(const std::vector<std::pair<uint64_t, int>>& numbers) {
  constexpr uint64_t kLarge = 1'000'000'000;
  int most = 0;
  for (const auto& [digits, places] : numbers) most = std::max(most, places);
  uint64_t multiple = 1;
  for (const auto& [digits, places] : numbers) {
    uint64_t scaled = digits;
    for (int i = places; i < most && scaled < kLarge; ++i) scaled *= 10;
    assert(scaled > 0);
    multiple = std::lcm(multiple, scaled);
    if (scaled >= kLarge || multiple >= kLarge) return UINT64_MAX;
  }
  return multiple;
}

// Returns whether a string in `value` contains a control character that needs a \u escape.
bool HasControl(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 && !absl::StrContains("\b\t\n\f\r", c);
  });
}
bool HasControl(const Json& value) {
  if (value.is_string()) return HasControl(value.get_ref<const std::string&>());
  if (!value.is_structured()) return false;
  for (const auto& [key, one] : value.items()) {
    if ((value.is_object() && HasControl(key)) || HasControl(one)) return true;
  }
  return false;
}

// Returns the number of arrays and objects in a value, itself included.
size_t Structures(const Json& value) {
  if (!value.is_structured()) return 0;
  size_t count = 1;
  for (const auto& [key, one] : value.items()) count += Structures(one);
  return count;
}

// Returns whether the types of `schema` include strings.
bool MayBeString(const Json& schema) {
  const auto type = schema.find("type");
  if (type == schema.end()) return true;
  if (type->is_string()) return *type == "string";
  return std::count(type->begin(), type->end(), "string") > 0;
}

// Checker: checks a schema and all schemas in it, and removes the keywords that are not enforced.
class Checker {
 public:
  Checker(bool lenient, CompileError error_of) : lenient_(lenient), error_of_(error_of) {}

  // Checks *schema and removes the keywords that are not enforced.
  absl::Status Check(const SchemaPlace& place, Json* schema);
  // Checks the least common multiple of all multipleOf that one value must obey: the library
  // computes it, and it may be large although each multipleOf is small. REQUIRES: Check was called.
  absl::Status CheckMultiples() const;
  // Returns whether the schema stays satisfiable after CloseObjects. REQUIRES: Check was called.
  bool may_close() const { return may_close_; }

 private:
  enum class Fate { kKeep, kDrop };
  // Each method checks one keyword, at the place `at`, and returns whether to keep it.
  absl::StatusOr<Fate> CheckKeyword(const SchemaPlace& at, const std::string& key,
                                    const Json& value, const Json& schema);
  absl::StatusOr<Fate> CheckObject(const SchemaPlace& at, const std::string& key, const Json& value,
                                   const Json& schema);
  absl::StatusOr<Fate> CheckList(const SchemaPlace& at, const std::string& key, const Json& value);
  absl::StatusOr<Fate> CheckNumber(const SchemaPlace& at, const std::string& key,
                                   const Json& value);
  absl::StatusOr<Fate> CheckPattern(const SchemaPlace& at, const std::string& pattern);
  absl::StatusOr<Fate> CheckFormat(const SchemaPlace& at, const Json& value, const Json& schema);
  absl::StatusOr<Fate> NotEnforced(const SchemaPlace& at, absl::string_view what) const {
    if (lenient_) return Fate::kDrop;
    return RefuseSchema(at, absl::StrCat(what, " cannot be enforced"));
  }

  const bool lenient_;
  const CompileError error_of_;
  bool may_close_ = true;
  size_t nodes_ = 0, patterns_ = 0, unicode_classes_ = 0, structures_ = 0;
  absl::flat_hash_set<std::string> compiled_patterns_;  // patterns that the library can compile
  uint64_t multiples_ = 0;
  std::vector<std::pair<uint64_t, int>> multiples_of_;  // (Digits, Places) of each multipleOf
  bool intersects_ = false;  // true: one value may have to obey several of the schemas
};

absl::Status Checker::Check(const SchemaPlace& place, Json* schema) {
  if (++nodes_ > SchemaLimits::kNodes) {
    return TooMany(SchemaPlace(), "schemas", SchemaLimits::kNodes, nodes_);
  }
  if (schema->is_boolean()) return absl::OkStatus();
  if (!schema->is_object())
    return RefuseSchema(place, "must be a schema: an object, true or false");
  // Count the schema that CloseObjects may add, so that its result is within the limit, too.
  if (schema->contains("properties") && !schema->contains("additionalProperties")) ++nodes_;
  const bool combines = schema->contains("anyOf") || schema->contains("oneOf") ||
                        schema->contains("$ref") || schema->contains("allOf");
  may_close_ =
      may_close_ && !schema->contains("allOf") && !(combines && schema->contains("properties"));
  std::set<std::string> dropped;
  for (const auto& [key, value] : schema->items()) {
    const absl::StatusOr<Fate> fate = CheckKeyword(SchemaPlace(&place, key), key, value, *schema);
    if (!fate.ok()) return fate.status();
    if (*fate == Fate::kDrop) dropped.insert(key);
  }
  Json kept = Json::object();
  for (auto& [key, value] : schema->items()) {
    if (dropped.count(key) > 0) continue;
    // Write a count such as 2.0 as an integer: the library refuses a float.
    if (IsOneOf(key, kCounts) && value.is_number_float()) value = value.get<uint64_t>();
    kept[key] = std::move(value);
  }
  size_t asserting = 0;  // number of keywords that restrict values
  for (const auto& [key, value] : kept.items()) asserting += IsOneOf(key, kShared) ? 0 : 1;
  intersects_ = intersects_ || (combines && asserting > 1) || kept.contains("allOf") ||
                kept.contains("patternProperties");
  absl::Status status;
  VisitSchemas(place, kept, [&](const SchemaPlace& at, Json& one) {
    status = Check(at, &one);
    return status.ok();
  });
  *schema = std::move(kept);
  return status;
}

absl::StatusOr<Checker::Fate> Checker::CheckKeyword(const SchemaPlace& at, const std::string& key,
                                                    const Json& value, const Json& schema) {
  if (IsOneOf(key, kNotEnforced)) {
    if (key == "uniqueItems" && value == false) return Fate::kDrop;
    return NotEnforced(at, absl::StrCat("the keyword ", key));
  }
  bool has_control = IsOneOf(key, {"const", "enum", "required"}) && HasControl(value);
  if (key == "properties" && value.is_object()) {
    for (const auto& [name, one] : value.items()) has_control |= HasControl(name);
  }
  if (has_control) {
    return RefuseSchema(at, "must not contain control characters whose only JSON escape is \\u");
  }
  if (key == "const" || key == "enum") {
    structures_ += Structures(value);
    if (structures_ > SchemaLimits::kStructures) {
      return TooMany(SchemaPlace(), "arrays and objects in const and enum",
                     SchemaLimits::kStructures, structures_);
    }
  }
  if (IsOneOf(key, kSchemaMaps) || key == "required") return CheckObject(at, key, value, schema);
  if (key == "items" && !value.is_array()) return Fate::kKeep;
  if (IsOneOf(key, kSchemaLists) || key == "enum") return CheckList(at, key, value);
  if (IsOneOf(key, kCounts) || IsOneOf(key, kBounds)) return CheckNumber(at, key, value);
  if (key == "type") {
    const auto is_type = [](const Json& one) {
      return one.is_string() && IsOneOf(one.get_ref<const std::string&>(), kTypes);
    };
    const bool all =
        value.is_array() ? std::all_of(value.begin(), value.end(), is_type) : is_type(value);
    if (all && !value.empty()) return Fate::kKeep;
    return RefuseSchema(at, "must be the name of a JSON type, or a list of names");
  }
  if (key == "pattern") {
    if (!value.is_string()) return RefuseSchema(at, "must be a string");
    return CheckPattern(at, value.get_ref<const std::string&>());
  }
  if (key == "format") return CheckFormat(at, value, schema);
  if (key == "const") {
    const size_t bytes = value.dump().size();
    if (bytes <= SchemaLimits::kEnumBytes) return Fate::kKeep;
    return TooMany(at, "bytes", SchemaLimits::kEnumBytes, bytes);
  }
  if (key == "$ref") {
    if (!value.is_string()) return RefuseSchema(at, "must be a string");
    const std::string& to = value.get_ref<const std::string&>();
    if (to == "#" || absl::StartsWith(to, "#/")) return Fate::kKeep;
    return RefuseSchema(at, absl::StrCat("must refer to this schema: #, or #/ and a path; got \"",
                                         CutText(to, kQuotedNameBytes), "\""));
  }
  if (key == "$schema" && value.is_string()) {
    const bool known =
        absl::StrContains(value.get_ref<const std::string&>(), "json-schema.org/draft");
    return known && at.above->above == nullptr ? Fate::kKeep : Fate::kDrop;
  }
  return IsOneOf(key, kOneSchema) ? Fate::kKeep : Fate::kDrop;
}

absl::StatusOr<Checker::Fate> Checker::CheckObject(const SchemaPlace& at, const std::string& key,
                                                   const Json& value, const Json& schema) {
  if (key == "required") {
    const auto is_string = [](const Json& one) { return one.is_string(); };
    if (value.is_array() && std::all_of(value.begin(), value.end(), is_string)) {
      if (value.size() <= SchemaLimits::kProperties) return Fate::kKeep;
      return TooMany(at, "names", SchemaLimits::kProperties, value.size());
    }
    return RefuseSchema(at, "must be a list of strings");
  }
  if (!value.is_object()) return RefuseSchema(at, "must be an object");
  if (key == "patternProperties") {
    if (value.size() > SchemaLimits::kPatternProperties) {
      return TooMany(at, "patterns", SchemaLimits::kPatternProperties, value.size());
    }
    Fate all = Fate::kKeep;
    for (const auto& [pattern, one] : value.items()) {
      const absl::StatusOr<Fate> fate = CheckPattern(SchemaPlace(&at, pattern), pattern);
      if (!fate.ok()) return fate;
      if (*fate == Fate::kDrop) all = Fate::kDrop;
    }
    return all;
  }
  if (key != "properties") return Fate::kKeep;
  if (value.size() > SchemaLimits::kProperties) {
    return TooMany(at, "properties", SchemaLimits::kProperties, value.size());
  }
  const auto required = schema.find("required");
  std::set<std::string> names;
  if (required != schema.end() && required->is_array()) {
    for (const Json& name : *required) {
      if (name.is_string()) names.insert(name.get<std::string>());
    }
  }
  size_t optional = 0;
  for (const auto& [name, one] : value.items()) optional += names.count(name) == 0 ? 1 : 0;
  if (optional <= SchemaLimits::kOptional) return Fate::kKeep;
  return TooMany(at, "optional properties", SchemaLimits::kOptional, optional);
}

absl::StatusOr<Checker::Fate> Checker::CheckList(const SchemaPlace& at, const std::string& key,
                                                 const Json& value) {
  if (!value.is_array()) return RefuseSchema(at, "must be a list");
  if (value.empty() && !lenient_ && IsOneOf(key, {"enum", "anyOf", "oneOf"})) {
    return RefuseSchema(at, "must not be empty: no value satisfies an empty list");
  }
  if (key != "enum") {
    if (value.size() <= SchemaLimits::kBranches) return Fate::kKeep;
    return TooMany(at, "schemas", SchemaLimits::kBranches, value.size());
  }
  if (value.size() > SchemaLimits::kEnumValues) {
    return TooMany(at, "values", SchemaLimits::kEnumValues, value.size());
  }
  const size_t bytes = value.dump().size();
  if (bytes <= SchemaLimits::kEnumBytes) return Fate::kKeep;
  return TooMany(at, "bytes", SchemaLimits::kEnumBytes, bytes);
}

absl::StatusOr<Checker::Fate> Checker::CheckNumber(const SchemaPlace& at, const std::string& key,
                                                   const Json& value) {
  if (!value.is_number()) return RefuseSchema(at, "must be a number");
  if (IsOneOf(key, kCounts)) {
    const double count = value.get<double>();
    if (count >= 0 && count <= SchemaLimits::kCount && count == std::floor(count)) {
      return Fate::kKeep;
    }
    return RefuseSchema(at,
                        absl::StrCat("must be a whole number in [0, ", SchemaLimits::kCount, "]"));
  }
  if (key != "multipleOf") return Fate::kKeep;
  if (!(value.get<double>() > 0)) return RefuseSchema(at, "must be above 0");
  const uint64_t digits = Digits(value);
  if (digits > SchemaLimits::kMultipleOf) {
    return RefuseSchema(at, absl::StrCat("must be at most ", SchemaLimits::kMultipleOf,
                                         " without its decimal point; got ", value.dump()));
  }
  multiples_ += digits;
  multiples_of_.emplace_back(digits, Places(value));
  if (multiples_ <= SchemaLimits::kMultiplesOf) return Fate::kKeep;
  return RefuseSchema(
      at, absl::StrCat("the sum of all multipleOf without their decimal points must be at most ",
                       SchemaLimits::kMultiplesOf, "; got ", multiples_));
}

absl::StatusOr<Checker::Fate> Checker::CheckPattern(const SchemaPlace& at,
                                                    const std::string& pattern) {
  if (++patterns_ > SchemaLimits::kPatterns) {
    return TooMany(SchemaPlace(), "patterns", SchemaLimits::kPatterns, patterns_);
  }
  if (pattern.size() > SchemaLimits::kPatternBytes) {
    return TooMany(at, "bytes", SchemaLimits::kPatternBytes, pattern.size());
  }
  const uint64_t repetition = GreatestRepetition(pattern);
  if (repetition > SchemaLimits::kRepetition) {
    return RefuseSchema(at, absl::StrCat("a repetition must be at most ", SchemaLimits::kRepetition,
                                         "; got ", repetition));
  }
  if (const absl::string_view fault = PatternFault(pattern); !fault.empty()) {
    return RefuseSchema(at, fault);
  }
  unicode_classes_ += UnicodeClasses(pattern);
  if (unicode_classes_ > SchemaLimits::kUnicodeClasses) {
    return TooMany(SchemaPlace(), "classes such as \\p{L} in all patterns",
                   SchemaLimits::kUnicodeClasses, unicode_classes_);
  }
  if (compiled_patterns_.count(pattern) > 0) return Fate::kKeep;
  const std::string error = error_of_(Json{{"type", "string"}, {"pattern", pattern}}.dump());
  if (error.empty()) compiled_patterns_.insert(pattern);
  if (error.empty()) return Fate::kKeep;
  return NotEnforced(at, absl::StrCat("the pattern (", CutText(error, kQuotedErrorBytes), ")"));
}

absl::StatusOr<Checker::Fate> Checker::CheckFormat(const SchemaPlace& at, const Json& value,
                                                   const Json& schema) {
  if (!value.is_string()) return RefuseSchema(at, "must be a string");
  if (!MayBeString(schema)) return Fate::kDrop;  // formats apply only to strings
  const std::string& format = value.get_ref<const std::string&>();
  if (IsOneOf(format, kFormats)) return Fate::kKeep;
  return NotEnforced(at, absl::StrCat("the format \"", CutText(format, kQuotedNameBytes), "\""));
}

absl::Status Checker::CheckMultiples() const {
  assert(nodes_ > 0 && multiples_ <= SchemaLimits::kMultiplesOf);
  const uint64_t multiple = intersects_ ? LeastCommonMultiple(multiples_of_) : 0;
  if (multiple <= SchemaLimits::kMultiplesOf) return absl::OkStatus();
  return RefuseSchema(SchemaPlace(),
                      absl::StrCat("the least common multiple of all multipleOf must be at most ",
                                   SchemaLimits::kMultiplesOf,
                                   " in a schema with allOf, "
                                   "patternProperties, or keywords beside anyOf, oneOf or $ref"));
}

// Adds `additionalProperties: false` to objects with `properties`, unless they require a property
// that is not listed.
void CloseObjects(Json* schema) {
  if (schema->is_object() && schema->contains("properties") &&
      !schema->contains("additionalProperties")) {
    const Json& listed = (*schema)["properties"];
    const Json required = schema->value("required", Json::array());
    const auto is_listed = [&](const Json& name) { return listed.contains(name); };
    if (std::all_of(required.begin(), required.end(), is_listed)) {
      (*schema)["additionalProperties"] = false;
    }
  }
  VisitSchemas(SchemaPlace(), *schema, [](const SchemaPlace& /*at*/, Json& one) {
    CloseObjects(&one);
    return true;
  });
}

// Returns whether an object can reach minProperties by repeating a key: the library lets keys
// repeat that `properties` does not list. The first such key beside the required ones is no
// repetition.
bool MayRepeatKeys(const Json& schema) {
  if (!schema.is_object() || !schema.contains("minProperties") || IsClosed(schema)) return false;
  const Json required = schema.value("required", Json::array());
  const std::set<Json> names(required.begin(), required.end());
  return schema["minProperties"].get<uint64_t>() > names.size() + 1;
}

// Refuses each minProperties that repeated keys can reach, or, if `lenient`, removes it. REQUIRES:
// CloseObjects was called if the schema may be closed.
absl::Status CheckKeyCounts(const SchemaPlace& place, bool lenient, Json* schema) {
  if (MayRepeatKeys(*schema)) {
    if (!lenient) {
      return RefuseSchema(SchemaPlace(&place, "minProperties"),
                          "must be at most the number of required properties plus 1, because other "
                          "keys may repeat");
    }
    schema->erase("minProperties");
  }
  absl::Status status;
  VisitSchemas(place, *schema, [&](const SchemaPlace& at, Json& one) {
    status = CheckKeyCounts(at, lenient, &one);
    return status.ok();
  });
  return status;
}

// Limits of FindError: compilations, and their cost together (CheckSchemaCost), where
// kTriedBytesPerCost bytes of schema cost 1.
constexpr size_t kMaxTries = 16;
constexpr uint64_t kTriedCost = 50'000, kTriedBytesPerCost = 10;

absl::Status CheckSize(const std::string& checked) {
  if (checked.size() <= SchemaLimits::kBytes) return absl::OkStatus();
  return TooMany(SchemaPlace(), "bytes without descriptions", SchemaLimits::kBytes, checked.size());
}

}  // namespace

absl::StatusOr<std::string> CheckSchema(std::string_view text, bool lenient,
                                        CompileError error_of) {
  absl::StatusOr<Json> schema = ParseText(text);
  if (!schema.ok()) return schema.status();
  Checker checker(lenient, error_of);
  absl::Status status = checker.Check(SchemaPlace(), &*schema);
  if (status.ok()) status = checker.CheckMultiples();
  if (!status.ok()) return status;
  if (*schema == false) return RefuseSchema(SchemaPlace(), "must allow a value; got false");
  if (*schema == true) *schema = Json::object();
  if (checker.may_close()) CloseObjects(&*schema);
  if (status = CheckKeyCounts(SchemaPlace(), lenient, &*schema); !status.ok()) return status;
  std::string checked = schema->dump();
  if (status = CheckSize(checked); !status.ok()) return status;
  TextCounter counter;  // CloseObjects adds values
  if (!Json::sax_parse(checked, &counter)) return counter.status();
  const absl::StatusOr<uint64_t> cost = CheckSchemaCost(&*schema);
  if (!cost.ok()) return cost.status();
  checked = schema->dump();  // CheckSchemaCost changes the spelling of references
  if (status = CheckSize(checked); !status.ok()) return status;
  assert(checked.front() == '{');  // WithOptions() adds fields to the object
  return checked;
}

std::string FindError(const std::string& checked, const std::string& error, CompileError error_of) {
  assert(!error.empty());
  const Json root = Json::parse(checked);
  // The places on the way to the innermost schema with the error.
  std::deque<SchemaPlace> way(1);
  const Json* schema = &root;
  size_t tries = 0;
  uint64_t cost = 0;
  bool found = true;
  while (found) {
    found = false;
    VisitSchemas(way.back(), *schema, [&](const SchemaPlace& at, const Json& one) {
      if (!one.is_object()) return true;
      Json alone = one;
      std::string text = alone.dump();
      if (absl::StrContains(text, "\"$ref\"")) {
        for (const char* shared : {"$defs", "definitions", "$schema"}) {
          if (root.contains(shared)) alone[shared] = root[shared];
        }
        text = alone.dump();
      }
      cost += text.size() / kTriedBytesPerCost;
      if (++tries > kMaxTries || cost > kTriedCost) return false;
      const absl::StatusOr<uint64_t> price = CheckSchemaCost(&alone);
      if (!price.ok() || cost + *price > kTriedCost) return true;
      cost += *price;
      if (error_of(text) != error) return true;
      way.push_back(at);
      schema = &one;
      found = true;
      return false;
    });
  }
  return way.back().Text();
}

}  // namespace hearth
