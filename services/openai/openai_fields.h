// OpenAiFields: the table of all fields that requests of OpenAI's and Anthropic's APIs may have.
//
// For each field of OpenAI's API, vLLM, llama.cpp and Anthropic's Messages API, the table says
// whether this server supports the field, ignores the field because it cannot change the answer, or
// refuses the request with an error that names the field. If a field is null, or has one of the
// no-op values in its row, the field counts as absent. Fields that are not in the table are
// unknown. docs/reference/http-fields.md is generated from the table. Thread safety: the table is
// constant; an UnknownFields object belongs to one thread.
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

// The JSON objects whose fields the table lists. A row may apply to several of them.
enum FieldPlace : uint64_t {
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
  kInTemplate = 1 << 11,       // chat_template_kwargs; a field that is not in the table is refused
  kInTool = 1 << 12,           // tools[]
  kInFunction = 1 << 13,       // tools[].function
  kInStructured = 1 << 14,     // structured_outputs
  kInResponses = 1 << 15,      // the body of /v1/responses
  kInText = 1 << 16,           // text
  kInTextFormat = 1 << 17,     // text.format
  kInItem = 1 << 18,           // input[]
  kInItemPart = 1 << 19,       // input[].content[] and input[].output[]
  kInFlatTool = 1 << 20,       // tools[] of /v1/responses
  // Anthropic's Messages API
  kInMessages = 1 << 21,      // the body of /v1/messages and of /v1/messages/count_tokens
  kInTurn = 1 << 22,          // messages[]
  kInBlock = 1 << 23,         // messages[].content[], system[], and content[] of a tool_result
  kInCustomTool = 1 << 24,    // tools[]
  kInOutputConfig = 1 << 25,  // output_config
  kInOutputFormat = 1 << 26,  // output_config.format, output_format
  kInToolChoice = 1 << 27,    // tool_choice
  // more objects of chats and of the Responses API
  kInSchema = 1 << 28,                    // response_format.json_schema
  kInCall = 1 << 29,                      // messages[].tool_calls[]
  kInCallFunction = 1 << 30,              // messages[].tool_calls[].function
  kInChoice = uint64_t{1} << 31,          // tool_choice, and tools[] of allowed_tools
  kInChoiceFunction = uint64_t{1} << 32,  // tool_choice.function
  kInAllowedTools = uint64_t{1} << 33,    // tool_choice.allowed_tools
  kInFlatChoice = uint64_t{1} << 34,      // tool_choice of /v1/responses, and its tools[]
};

// No-op values: a field with such a value, or null, counts as absent.
enum FieldNothing : uint16_t {
  kFalse = 1 << 0,
  kTrue = 1 << 1,
  kZero = 1 << 2,
  kOne = 1 << 3,
  kMinusOne = 1 << 4,
  kEmptyText = 1 << 5,
  kEmptyList = 1 << 6,
  kEmptyObject = 1 << 7,
  kEmptyTexts = 1 << 8,  // a list with one empty string: [""]
  kWordList = 1 << 9,    // a list with one word of the row's `words`
  // a list with all of the row's `words`, in order; a single word does not count
  kAllWords = 1 << 10,
};

enum class FieldUse : uint8_t { kServed, kIgnored, kRefused };

struct OpenAiField {
  absl::string_view name;
  uint64_t places;  // bitwise or of FieldPlace values: the objects that may have the field
  FieldUse use;
  uint16_t nothing = 0;   // bitwise or of FieldNothing values: the field's no-op values
  const char* note = "";  // remark for the documentation; "": none
  // FieldPlace of the fields inside the value, or inside each element of a list; 0: these fields
  // are not checked
  uint64_t inner = 0;
  const char* words = "";  // the no-op words, separated by spaces; "": none
};

// Returns the table, sorted by name. Rows with the same name apply to different objects.
absl::Span<const OpenAiField> OpenAiFieldTable();
// Returns the table row of a field; null if the field is unknown. /tokenize and /detokenize ignore
// fields that matter only if an answer is generated. A field of /v1/responses without a row has the
// row of chats.
const OpenAiField* FindOpenAiField(absl::string_view name, uint64_t place);
bool AsksForNothing(const OpenAiField& field, JsonValue value);
// Returns whether a field with this value counts as absent; true for unknown fields. Used as a
// filter by JsonFields.
bool CountsAsAbsent(uint64_t place, absl::string_view name, JsonValue value);

// Returns the path of an object's fields without their names, such as "messages[]."; "" for the
// request body.
absl::string_view PathOfPlace(uint64_t place);

// UnknownFields: collects the names of unknown fields of a request, for a response header and the
// log. Clients choose these names, so their number and length are limited, and characters other
// than letters, digits, "_", "-" and "." are replaced by "?".
class UnknownFields {
 public:
  static constexpr size_t kMaxNames = 8, kMaxNameBytes = 64;

  void Add(uint64_t place, absl::string_view name);
  const std::vector<std::string>& names() const { return names_; }
  // Returns the names as "a, messages[].b", with ", ..." at the end if there were too many. "": no
  // unknown fields.
  std::string Text() const;

 private:
  std::vector<std::string> names_;  // each name once
  bool has_more_ = false;
};

// Checks the fields of a JSON object. Returns kInvalidArgument "PATH: is not supported by this
// server; ..." for the first field that the table refuses. Adds unknown fields to `unknown`.
absl::Status CheckOpenAiFields(JsonValue object, uint64_t place, UnknownFields* unknown);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_OPENAI_FIELDS_H_
