// OpenAiFields: the table of all fields that requests of OpenAI's API may have.
//
// For each field of OpenAI's API, vLLM and llama.cpp, the table says whether this server serves the
// field, ignores it because it cannot change the answer, or refuses it by name. null and the values
// listed in the row ask for nothing: such a field counts as absent. Fields without a row are
// unknown. docs/reference/http-fields.md is generated from the table.
// Thread safety: the table is constant; an UnknownFields belongs to one thread.
#ifndef HEARTH_SERVICES_OPENAI_OPENAI_FIELDS_H_
#define HEARTH_SERVICES_OPENAI_OPENAI_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/serving/json_reader.h"

namespace hearth {

// Objects that have fields; a row of the table may cover several.
enum FieldPlace : uint16_t {
  kInChat = 1 << 0,            // the body of /v1/chat/completions
  kInCompletion = 1 << 1,      // the body of /v1/completions
  kInTokenize = 1 << 2,        // the body of /tokenize
  kInDetokenize = 1 << 3,      // the body of /detokenize
  kInMessage = 1 << 4,         // messages[]
  kInPart = 1 << 5,            // messages[].content[]
  kInStreamOptions = 1 << 6,   // stream_options
  kInResponseFormat = 1 << 7,  // response_format
  kInCacheOptions = 1 << 8,    // prompt_cache_options
  kInBreakpoint = 1 << 9,      // prompt_cache_breakpoint
  kInCacheControl = 1 << 10,   // cache_control
  kInTemplate = 1 << 11,       // chat_template_kwargs; fields without a row are refused
};

// Values that ask for nothing, besides null.
enum FieldNothing : uint16_t {
  kFalse = 1 << 0,
  kTrue = 1 << 1,
  kZero = 1 << 2,
  kOne = 1 << 3,
  kMinusOne = 1 << 4,
  kEmptyText = 1 << 5,
  kEmptyList = 1 << 6,
  kEmptyObject = 1 << 7,
  kEmptyTexts = 1 << 8,  // [""]
  kWordList = 1 << 9,    // a list with one of the row's words
  kAllWords = 1 << 10,   // the list of all words of the row, in order; a single word does not count
};

enum class FieldUse : uint8_t { kServed, kIgnored, kRefused };

struct OpenAiField {
  absl::string_view name;
  uint16_t places;  // a set of FieldPlace
  FieldUse use;
  uint16_t nothing = 0;    // a set of FieldNothing
  const char* note = "";   // "": none
  uint16_t inner = 0;      // FieldPlace of the value's own fields; 0: they are not checked
  const char* words = "";  // words that ask for nothing, separated by spaces; "": none
};

// Sorted by name; rows with equal names have different places.
absl::Span<const OpenAiField> OpenAiFieldTable();
// Returns null if the field is unknown. /tokenize and /detokenize ignore fields that apply only to
// calls that generate an answer.
const OpenAiField* FindOpenAiField(absl::string_view name, uint16_t place);
bool AsksForNothing(const OpenAiField& field, JsonValue value);
// Whether a field with this value counts as absent; a filter for JsonFields.
bool CountsAsAbsent(uint16_t place, absl::string_view name, JsonValue value);

// The path prefix of fields in a place, such as "messages[]."; "" for a body.
absl::string_view PathOfPlace(uint16_t place);

// UnknownFields: names of unknown fields, for a header and the log. Callers choose the names, so
// their number and length are limited, and characters other than letters, digits, "_", "-" and "."
// are replaced by "?".
class UnknownFields {
 public:
  static constexpr size_t kMaxNames = 8, kMaxNameBytes = 64;

  void Add(uint16_t place, absl::string_view name);
  const std::vector<std::string>& names() const { return names_; }
  // Returns "a, messages[].b", with ", ..." at the end if names were left out. Empty: no unknown
  // fields.
  std::string Text() const;

 private:
  std::vector<std::string> names_;  // no duplicates
  bool has_more_ = false;
};

// kInvalidArgument "PATH: is not supported by this server; ..." for the first field of `object`
// that the table refuses. Adds unknown fields to `unknown`.
absl::Status CheckOpenAiFields(JsonValue object, uint16_t place, UnknownFields* unknown);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_OPENAI_FIELDS_H_
