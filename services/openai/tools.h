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

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/inference.pb.h"
#include "services/openai/answer_schema.h"
#include "services/openai/call_reader.h"
#include "services/openai/openai_fields.h"
#include "services/serving/json_reader.h"
#include "worker/text/jinja/template_tools.h"

namespace hearth {

inline constexpr size_t kMaxTools = 128;
inline constexpr size_t kMaxToolNameBytes = 128;

struct Tool {
  std::string name;
  JsonValue function;       // object with the name, the description and the schema
  const char* schema = "";  // name of the field of `function` that has the parameters' schema
  bool strict = false;      // refuse keywords of the parameters that cannot be enforced
  std::optional<JsonValue> parameters() const { return function.Find(schema); }
};

// Where a tool, a tool choice and a call have their fields: in an object `function`, as in chat
// completions, or next to `type`, as in the Responses API.
enum class ToolStyle : uint8_t { kNested, kFlat };

// Returns whether the name matches [A-Za-z0-9_-]{1,128}.
bool IsToolName(absl::string_view name);
// Parses the field `tools`. Returns an empty list if the field is absent. kInvalidArgument names
// the path of the wrong field.
absl::StatusOr<std::vector<Tool>> ReadTools(std::optional<JsonValue> tools, UnknownFields* unknown,
                                            ToolStyle style = ToolStyle::kNested);
// Parses a list of at most `most` tools. `read_tool` appends one tool.
absl::StatusOr<std::vector<Tool>> ReadToolList(
    std::optional<JsonValue> tools, size_t most,
    absl::FunctionRef<absl::Status(JsonValue, std::vector<Tool>*)> read_tool);
// Parses an object with the name, the description, the schema and `strict` of a function.
absl::StatusOr<Tool> ReadFunction(JsonValue function, const char* schema);
// Appends the line of the prompt that describes a tool, without a line end.
void AppendTool(const Tool& tool, std::string* out);
// Returns the text of the prompt that describes the tools. Appends the offset of the end of each
// tool in the text to `ends`, unless `ends` is null. REQUIRES: `tools` is not empty.
std::string ToolsText(const std::vector<Tool>& tools, std::vector<size_t>* ends = nullptr);

struct ToolChoice {
  enum Mode : uint8_t { kAuto, kNone, kRequired };
  Mode mode = kAuto;
  std::vector<size_t> allowed;  // ascending indexes of the tools that may be called
  bool is_named = false;        // the choice names one function: the answer has exactly one call
};
// Returns the choice `auto` of all tools.
ToolChoice AnyOf(const std::vector<Tool>& tools);
// Returns the index of the tool with this name.
absl::StatusOr<size_t> FindTool(JsonValue name, const std::vector<Tool>& tools);
// Refuses a choice that requires a call if there are no tools.
absl::Status CheckChoice(JsonValue source, const ToolChoice& choice,
                         const std::vector<Tool>& tools);
// Parses the field `tool_choice`: "auto", "none", "required", a named function, or allowed_tools.
// If the field is absent, the choice is auto.
absl::StatusOr<ToolChoice> ReadToolChoice(std::optional<JsonValue> choice,
                                          const std::vector<Tool>& tools,
                                          ToolStyle style = ToolStyle::kNested);

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
// Parses the field `text` of the Responses API.
absl::StatusOr<AnswerForm> ReadTextForm(std::optional<JsonValue> text,
                                        const JsonLimits& limits = {});

// The tool calls that an answer may contain, and the grammar of the answer's text.
struct AnswerRules {
  CallRules calls;
  std::string answer_prefix;           // begins the answer, before the first generated token
  std::optional<v1::Grammar> grammar;  // absent: the answer is free text
  // A grammar of only the strict schemas, which must compile, too. Set if `grammar` is lenient, but
  // some of its schemas are strict.
  std::optional<v1::Grammar> strict;
  // Paths in the request's body, for errors about `grammar` and about `strict`.
  SchemaPaths paths, strict_paths;
};
// Returns the rules for the answer to a request. `own`: the model's template, if it reads tools;
// null: the prompt lists the tools. kInvalidArgument: a schema is wrong or too large, or the choice
// requires a call and calls of the template are not JSON.
absl::StatusOr<AnswerRules> RulesOf(const std::vector<Tool>& tools, const ToolChoice& choice,
                                    bool parallel, const AnswerForm& form,
                                    const TemplateTools* own = nullptr);

// A call of an earlier turn. `arguments`: JSON text; it borrows from the request.
struct PastCall {
  JsonValue id, name;
  absl::string_view arguments;
};
// Parses the field `tool_calls` of an assistant message.
absl::StatusOr<std::vector<PastCall>> ReadPastCalls(JsonValue tool_calls);

// CallHistory: writes the calls and results of a chat's earlier turns as text of the prompt.
//
// Thread safety: none.
class CallHistory {
 public:
  // Returns the text of an assistant message with calls: `text`, and below it the calls in the form
  // in which the model writes them.
  absl::StatusOr<std::string> TextWithCalls(std::string text, const std::vector<PastCall>& calls);
  // Adds calls whose text the model's template writes.
  absl::Status Add(const std::vector<PastCall>& calls);
  struct Call {
    std::string name;
    size_t order = 0;  // number of the call in the chat: results are sorted by it
  };
  // Returns the last call with this id.
  absl::StatusOr<Call> Find(JsonValue id) const;
  // Returns the text of the result of a call. `failed`: the result is an error message.
  static std::string ResultText(const Call& call, absl::string_view result, bool failed);
  // Returns the number of calls of the chat so far.
  size_t calls() const { return next_; }

 private:
  std::map<std::string, Call, std::less<>> calls_;  // call id -> last call with this id
  size_t next_ = 0;                                 // number of the next call
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_TOOLS_H_
