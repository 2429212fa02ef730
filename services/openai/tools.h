// Parses the tools of a chat, the tool choice, and the required form of the answer (text or JSON).
//
// The prompt lists all tools in one text, a line for each tool, in the order of the request. The
// text does not depend on the tool choice, so requests with different choices share a prefix. An
// answer that must be a call or JSON is constrained from its first token. With the
// choice `auto`, an answer is constrained only from a line that begins with a call.
// Thread safety: pure functions. Ownership: the results borrow from the request's document.
#ifndef HEARTH_SERVICES_OPENAI_TOOLS_H_
#define HEARTH_SERVICES_OPENAI_TOOLS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/inference.pb.h"
#include "services/openai/answer_schema.h"
#include "services/openai/call_reader.h"
#include "services/openai/openai_fields.h"
#include "services/serving/json_reader.h"

namespace hearth {

inline constexpr size_t kMaxTools = 128;
inline constexpr size_t kMaxToolNameBytes = 128;

struct Tool {
  std::string name;
  JsonValue function;   // object with name, description and parameters
  bool strict = false;  // refuse keywords of the parameters that cannot be enforced
};

// Returns whether the name matches [A-Za-z0-9_-]{1,128}.
bool IsToolName(absl::string_view name);
// Parses the field `tools`. Returns an empty list if the field is absent. kInvalidArgument names
// the path of the wrong field.
absl::StatusOr<std::vector<Tool>> ReadTools(std::optional<JsonValue> tools, UnknownFields* unknown);
// Returns the text of the prompt that describes the tools. REQUIRES: `tools` is not empty.
std::string ToolsText(const std::vector<Tool>& tools);

struct ToolChoice {
  enum Mode : uint8_t { kAuto, kNone, kRequired };
  Mode mode = kAuto;
  std::vector<size_t> allowed;  // ascending indexes of the tools that may be called
  bool is_named = false;        // the choice names one function: the answer has exactly one call
};
// Parses the field `tool_choice`: "auto", "none", "required", a named function, or allowed_tools.
// If the field is absent, the choice is auto.
absl::StatusOr<ToolChoice> ReadToolChoice(std::optional<JsonValue> choice,
                                          const std::vector<Tool>& tools);

// The required form of an answer: text, any JSON object, or JSON that obeys a schema.
struct AnswerForm {
  bool any_object = false;
  std::optional<JsonValue> schema;
  std::optional<JsonDocument> parsed;  // holds the schema if the request has it as JSON text
  std::string path;                    // path of the schema in the request's body

  bool is_text() const { return !any_object && !schema.has_value(); }
};
// Parses response_format, and vLLM's structured_outputs and guided_json. A request may use only one
// of them. `limits` apply to a schema that is given as JSON text.
absl::StatusOr<AnswerForm> ReadAnswerForm(JsonFields* fields, const JsonLimits& limits = {});

// The tool calls that an answer may contain, and the grammar of the answer's text.
struct AnswerRules {
  CallRules calls;
  std::optional<v1::Grammar> grammar;  // absent: the answer is free text
  // A grammar of only the strict schemas, which must compile, too. Set if `grammar` is lenient, but
  // some of its schemas are strict.
  std::optional<v1::Grammar> strict;
  // Paths in the request's body, for errors about `grammar` and about `strict`.
  SchemaPaths paths, strict_paths;
};
// Returns the rules for the answer to a request. kInvalidArgument: a schema is wrong or too large.
absl::StatusOr<AnswerRules> RulesOf(const std::vector<Tool>& tools, const ToolChoice& choice,
                                    bool parallel, const AnswerForm& form);

// CallHistory: writes the calls and results of a chat's earlier turns as text of the prompt.
//
// Thread safety: none.
class CallHistory {
 public:
  // Returns the text of an assistant message with calls: `text`, and below it the calls in the form
  // in which the model writes them.
  absl::StatusOr<std::string> TextWithCalls(std::string text, JsonValue tool_calls);
  // Returns the text of a tool's result. Sets `order` to the number of the result's call in
  // the chat, because results are sorted in the order of their calls.
  absl::StatusOr<std::string> ResultText(JsonValue message, absl::string_view result,
                                         size_t* order) const;
  // Returns the number of calls of the chat so far.
  size_t calls() const { return next_; }

 private:
  struct Call {
    std::string name;
    size_t order = 0;
  };
  std::map<std::string, Call, std::less<>> calls_;  // by id of a call: the last call with this id
  size_t next_ = 0;                                 // number of the next call
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_TOOLS_H_
