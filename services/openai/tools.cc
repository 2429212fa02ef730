#include "services/openai/tools.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/error_reason.h"
#include "services/serving/canonical_json.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

// Google's instruction to Gemma 3 about function calls, and a sentence about several calls.
constexpr char kToolsIntro[] =
    "You have access to functions. If you decide to invoke any of the function(s), you MUST put it "
    "in the format of\n"
    "{\"name\": function name, \"parameters\": dictionary of argument name and its value}\n"
    "To invoke several functions, put a list of these: [{...}, {...}]\n\n"
    "You SHOULD NOT include any other text in the response if you call a function\n";
constexpr char kFunctionOnly[] = "\"function\", the only supported type of tool";
// Beginnings of a call and of a list of calls: the triggers of the grammar.
constexpr char kOneCall[] = "{\"name\":", kListOfCalls[] = "[{\"name\":";

absl::Status CheckName(JsonValue name) {
  if (name.is_string() && IsToolName(*name.Text())) return absl::OkStatus();
  return name.Bad(absl::StrCat("1 to ", kMaxToolNameBytes, " letters, digits, \"_\" and \"-\""));
}

// Returns the object with the fields of a tool, a tool choice or a call, and checks the field
// `type`.
absl::StatusOr<JsonValue> FunctionOf(JsonValue object, ToolStyle style) {
  if (absl::Status status = object.CheckObject(); !status.ok()) return status;
  const std::optional<JsonValue> type = object.Find("type"), function = object.Find("function");
  if (type.has_value() && !type->Is("function")) {
    return WithReason(type->Bad(kFunctionOnly), kUnsupportedParameter);
  }
  if (style == ToolStyle::kFlat) return object;
  if (!function.has_value()) return object.Refuse("must have a function; got none");
  if (absl::Status status = function->CheckObject(); !status.ok()) return status;
  return *function;
}

absl::Status ReadTool(JsonValue tool, ToolStyle style, UnknownFields* unknown,
                      std::vector<Tool>* tools) {
  const absl::StatusOr<JsonValue> function = FunctionOf(tool, style);
  if (!function.ok()) return function.status();
  const bool is_flat = style == ToolStyle::kFlat;
  absl::Status status = CheckOpenAiFields(tool, is_flat ? kInFlatTool : kInTool, unknown);
  if (!status.ok()) return status;
  absl::StatusOr<Tool> made = ReadFunction(*function, "parameters");
  if (!made.ok()) return made.status();
  tools->push_back(*std::move(made));
  return absl::OkStatus();
}

// Returns the index of the tool that `object` names.
absl::StatusOr<size_t> ToolOf(JsonValue object, const std::vector<Tool>& tools, ToolStyle style) {
  const absl::StatusOr<JsonValue> function = FunctionOf(object, style);
  if (!function.ok()) return function.status();
  const absl::StatusOr<JsonValue> name = function->FindNeeded("name");
  return name.ok() ? FindTool(*name, tools) : name.status();
}

absl::Status ReadMode(JsonValue mode, absl::string_view must, bool has_none, ToolChoice* choice) {
  if (mode.Is("auto")) {
    choice->mode = ToolChoice::kAuto;
  } else if (mode.Is("required")) {
    choice->mode = ToolChoice::kRequired;
  } else if (mode.Is("none") && has_none) {
    choice->mode = ToolChoice::kNone;
  } else {
    return mode.Bad(must);
  }
  return absl::OkStatus();
}

absl::Status ReadAllowedTools(JsonValue choice, const std::vector<Tool>& tools, ToolStyle style,
                              ToolChoice* made) {
  const std::optional<JsonValue> allowed =
      style == ToolStyle::kFlat ? choice : choice.Find("allowed_tools");
  if (!allowed.has_value()) return choice.Refuse("must have allowed_tools; got none");
  if (absl::Status status = allowed->CheckObject(); !status.ok()) return status;
  const std::optional<JsonValue> mode = allowed->Find("mode"), names = allowed->Find("tools");
  if (!mode.has_value()) return allowed->Refuse("must have a mode: auto or required");
  if (absl::Status s = ReadMode(*mode, "auto or required", /*has_none=*/false, made); !s.ok()) {
    return s;
  }
  if (!names.has_value() || !names->is_list() || names->size() == 0) {
    return allowed->Refuse("must have tools: a list of functions");
  }
  std::set<size_t> found;
  for (const JsonValue name : names->elements()) {
    const absl::StatusOr<size_t> tool = ToolOf(name, tools, style);
    if (!tool.ok()) return tool.status();
    found.insert(*tool);
  }
  made->allowed.assign(found.begin(), found.end());
  return absl::OkStatus();
}

// Sets the schema, which is an object, a bool or JSON text.
absl::Status SetSchema(JsonValue schema, const JsonLimits& limits, AnswerForm* form) {
  form->schema = schema;
  form->path = schema.Path();
  if (!schema.is_string()) {
    const bool is_schema = schema.is_object() || schema.IsBool(true) || schema.IsBool(false);
    return is_schema ? absl::OkStatus() : schema.Bad("a JSON schema");
  }
  absl::StatusOr<JsonDocument> parsed = JsonDocument::Parse(*schema.Text(), schema.Path(), limits);
  if (!parsed.ok()) return parsed.status();
  form->parsed = *std::move(parsed);
  form->schema = form->parsed->root();
  return form->schema->CheckObject();
}

// Reads `response_format`, or `text.format` of the Responses API, which has the fields of
// `json_schema` next to `type`.
absl::Status ReadFormat(JsonValue format, bool is_flat, const JsonLimits& limits,
                        AnswerForm* form) {
  constexpr char kTypes[] = "\"text\", \"json_object\" or \"json_schema\"";
  if (absl::Status status = format.CheckObject(); !status.ok()) return status;
  const std::optional<JsonValue> type = format.Find("type");
  if (!type.has_value()) return format.Refuse(absl::StrCat("must have a type: ", kTypes));
  if (type->Is("text")) return absl::OkStatus();
  if (type->Is("json_object")) {
    form->any_object = true;
    return absl::OkStatus();
  }
  if (!type->Is("json_schema")) {
    return WithReason(type->Bad(kTypes), kUnsupportedParameter);
  }
  const std::optional<JsonValue> named = is_flat ? format : format.Find("json_schema");
  if (!named.has_value()) return format.Refuse("must have a json_schema; got none");
  if (absl::Status status = named->CheckObject(); !status.ok()) return status;
  // An answer needs neither the name nor `strict`, so both may be absent.
  const std::optional<JsonValue> name = named->Find("name"), strict = named->Find("strict");
  if (name.has_value()) {
    if (absl::Status status = CheckName(*name); !status.ok()) return status;
  }
  if (strict.has_value() && !strict->Bool().ok()) return strict->Bool().status();
  const absl::StatusOr<JsonValue> schema = named->FindNeeded("schema");
  if (!schema.ok()) return schema.status();
  if (absl::Status status = schema->CheckObject(); !status.ok()) return status;
  return SetSchema(*schema, limits, form);
}

absl::Status ReadResponseFormat(JsonValue format, const JsonLimits& limits, AnswerForm* form) {
  return ReadFormat(format, /*is_flat=*/false, limits, form);
}

// Reads vLLM's structured_outputs: the fields json and json_object. The field table
// (openai_fields.cc) refuses other fields.
absl::Status ReadStructuredOutputs(JsonValue options, const JsonLimits& limits, AnswerForm* form) {
  if (absl::Status status = options.CheckObject(); !status.ok()) return status;
  JsonFields fields(options, CountsAsAbsent, kInStructured);
  fields.Bool("json_object", &form->any_object);
  const std::optional<JsonValue> schema = fields.Find("json");
  if (!fields.status().ok() || !schema.has_value()) return fields.status();
  if (form->any_object) return schema->Refuse("must be absent if json_object is true");
  return SetSchema(*schema, limits, form);
}

// Returns a code fence: more backticks than any run of backticks in the text.
std::string FenceFor(absl::string_view text) {
  size_t longest = 2, run = 0;
  for (const char c : text) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return std::string(longest + 1, '`');
}

// Returns whether the text ends at the beginning of a line, white space aside.
bool EndsALine(absl::string_view text) {
  const size_t last = text.find_last_not_of(" \t\r");
  return last == text.npos || text[last] == '\n';
}

// Appends {"name": NAME, "parameters": ARGUMENTS}. Arguments that are not valid JSON, for example
// because the answer was cut, stay unchanged.
void AppendCall(absl::string_view name, absl::string_view arguments, std::string* out) {
  absl::StrAppend(out, "{\"name\": \"", name, "\", \"parameters\": ");
  if (absl::StripAsciiWhitespace(arguments).empty()) {
    out->append("{}");
  } else if (!AppendCanonicalJson(arguments, out)) {
    absl::StrAppend(out, arguments);
  }
  out->push_back('}');
}

}  // namespace

bool IsToolName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxToolNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
         });
}

absl::StatusOr<Tool> ReadFunction(JsonValue function, const char* schema) {
  const absl::StatusOr<JsonValue> name = function.FindNeeded("name");
  if (!name.ok()) return name.status();
  if (absl::Status status = CheckName(*name); !status.ok()) return status;
  Tool made{std::string(*name->Text()), function, schema};
  JsonFields fields(function);
  std::string description;
  fields.Text("description", &description);
  fields.Bool("strict", &made.strict);
  if (!fields.status().ok()) return fields.status();
  return made;
}

absl::StatusOr<std::vector<Tool>> ReadToolList(
    std::optional<JsonValue> tools, size_t most,
    absl::FunctionRef<absl::Status(JsonValue, std::vector<Tool>*)> read_tool) {
  std::vector<Tool> read;
  if (!tools.has_value()) return read;
  if (!tools->is_list()) return tools->Bad("a list of tools");
  if (tools->size() > most) {
    return tools->Refuse(absl::StrCat("must have at most ", most, " tools; got ", tools->size()));
  }
  std::set<std::string> names;
  for (const JsonValue one : tools->elements()) {
    if (absl::Status status = read_tool(one, &read); !status.ok()) return status;
    if (!names.insert(read.back().name).second) {
      return read.back().function.Find("name")->Bad("a name that no other tool has");
    }
  }
  return read;
}

absl::StatusOr<std::vector<Tool>> ReadTools(std::optional<JsonValue> tools, UnknownFields* unknown,
                                            ToolStyle style) {
  return ReadToolList(tools, kMaxTools, [&](JsonValue tool, std::vector<Tool>* read) {
    return ReadTool(tool, style, unknown, read);
  });
}

void AppendTool(const Tool& tool, std::string* out) {
  absl::StrAppend(out, "{\"name\": \"", tool.name, "\"");
  for (const auto& [name, field] : {std::pair("description", tool.function.Find("description")),
                                    std::pair("parameters", tool.parameters())}) {
    if (!field.has_value()) continue;
    absl::StrAppend(out, kJsonBetweenItems, "\"", name, "\"", kJsonAfterKey);
    field->Write(out);
  }
  out->push_back('}');
}

std::string ToolsText(const std::vector<Tool>& tools, std::vector<size_t>* ends) {
  std::string text = kToolsIntro;
  for (size_t i = 0; i < tools.size(); ++i) {
    if (i > 0) text.push_back('\n');
    AppendTool(tools[i], &text);
    if (ends != nullptr) ends->push_back(text.size());
  }
  return text;
}

absl::StatusOr<size_t> FindTool(JsonValue name, const std::vector<Tool>& tools) {
  for (size_t i = 0; i < tools.size(); ++i) {
    if (name.Is(tools[i].name)) return i;
  }
  return name.Bad("the name of a function in tools");
}

ToolChoice AnyOf(const std::vector<Tool>& tools) {
  ToolChoice choice;
  for (size_t i = 0; i < tools.size(); ++i) choice.allowed.push_back(i);
  return choice;
}

absl::Status CheckChoice(JsonValue source, const ToolChoice& choice,
                         const std::vector<Tool>& tools) {
  if (choice.mode != ToolChoice::kRequired || !tools.empty()) return absl::OkStatus();
  return source.Refuse("needs tools; got none");
}

absl::StatusOr<ToolChoice> ReadToolChoice(std::optional<JsonValue> choice,
                                          const std::vector<Tool>& tools, ToolStyle style) {
  constexpr char kForms[] =
      "auto, none, required, {\"type\": \"function\", ...} or {\"type\": \"allowed_tools\", ...}";
  ToolChoice made = AnyOf(tools);
  if (!choice.has_value()) return made;
  absl::Status status;
  if (choice->is_string()) {
    status = ReadMode(*choice, kForms, /*has_none=*/true, &made);
  } else if (const auto type = choice->Find("type"); type.has_value() && type->Is("function")) {
    made.mode = ToolChoice::kRequired;
    made.is_named = true;
    const absl::StatusOr<size_t> tool = ToolOf(*choice, tools, style);
    status = tool.status();
    if (tool.ok()) made.allowed = {*tool};
  } else if (type.has_value() && type->Is("allowed_tools")) {
    status = ReadAllowedTools(*choice, tools, style, &made);
  } else {
    status = choice->Bad(kForms);
  }
  if (status.ok()) status = CheckChoice(*choice, made, tools);
  if (!status.ok()) return status;
  return made;
}

absl::StatusOr<AnswerForm> ReadAnswerForm(JsonFields* fields, const JsonLimits& limits) {
  using Reader = absl::Status (*)(JsonValue, const JsonLimits&, AnswerForm*);
  constexpr std::pair<const char*, Reader> kReaders[] = {
      {"response_format", ReadResponseFormat},
      {"structured_outputs", ReadStructuredOutputs},
      {"guided_json", SetSchema}};
  AnswerForm form;
  const char* first = nullptr;
  for (const auto& [name, read] : kReaders) {
    const std::optional<JsonValue> asked = fields->Find(name);
    if (!asked.has_value()) continue;
    AnswerForm one;
    if (absl::Status status = read(*asked, limits, &one); !status.ok()) return status;
    if (one.is_text()) continue;
    if (first != nullptr)
      return asked->Refuse(absl::StrCat("must be absent together with ", first));
    first = name;
    if (one.any_object) one.path = name;
    form = std::move(one);
  }
  if (!fields->status().ok()) return fields->status();
  return form;
}

absl::StatusOr<AnswerForm> ReadTextForm(std::optional<JsonValue> text, const JsonLimits& limits) {
  AnswerForm form;
  if (!text.has_value()) return form;
  JsonFields fields(*text, CountsAsAbsent, kInText);
  const std::optional<JsonValue> format = fields.Find("format");
  absl::Status status = fields.status();
  if (format.has_value()) status = ReadFormat(*format, /*is_flat=*/true, limits, &form);
  if (!status.ok()) return status;
  if (form.any_object) form.path = "text.format";
  return form;
}

absl::StatusOr<AnswerRules> RulesOf(const std::vector<Tool>& tools, const ToolChoice& choice,
                                    bool parallel, const AnswerForm& form,
                                    const TemplateTools* own) {
  AnswerRules rules;
  AnswerShape shape, strict;
  // A model with its own template may be unable to write lists of calls.
  parallel = parallel && !choice.is_named && own == nullptr;
  rules.calls.parallel = shape.parallel = strict.parallel = parallel;
  if (own != nullptr) {
    rules.calls.key = shape.key = strict.key = own->call_key;
    rules.calls.prefix = own->call_prefix;
    if (choice.mode == ToolChoice::kRequired) rules.answer_prefix = own->call_prefix;
  }
  const bool reads_calls = own == nullptr || !own->call_key.empty();
  if (!reads_calls && choice.mode == ToolChoice::kRequired) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat(
                          "tool_choice: must be auto or none: the model's chat template, ",
                          own->name, ", does not write a call as a JSON object in its own line")),
                      kUnsupportedParameter);
  }
  if (choice.mode != ToolChoice::kNone && reads_calls) {
    for (const size_t i : choice.allowed) {
      shape.calls.push_back({tools[i].name,
                             absl::StrCat(tools[i].function.Path(), ".", tools[i].schema),
                             tools[i].parameters()});
      rules.calls.names.push_back(tools[i].name);
      if (tools[i].strict) strict.calls.push_back(shape.calls.back());
    }
  }
  const bool has_form = !form.is_text() && choice.mode != ToolChoice::kRequired;
  if (shape.calls.empty() && !has_form) return rules;
  static const JsonDocument& any_object =
      *new JsonDocument(*JsonDocument::Parse(R"({"type": "object"})", "the schema"));
  if (has_form) strict.schema = shape.schema = form.any_object ? any_object.root() : *form.schema;
  shape.schema_path = strict.schema_path = form.path;
  rules.paths = PathsOf(shape);
  v1::Grammar& grammar = rules.grammar.emplace();
  absl::Status status = AppendAnswerSchema(shape, grammar.mutable_json_schema());
  if (!status.ok()) return status;
  grammar.set_lenient(strict.calls.size() < shape.calls.size());
  if (grammar.lenient() && (!strict.calls.empty() || has_form)) {
    rules.strict_paths = PathsOf(strict);
    status = AppendAnswerSchema(strict, rules.strict.emplace().mutable_json_schema());
    if (!status.ok()) return status;
  }
  if (choice.mode != ToolChoice::kAuto || has_form) return rules;
  grammar.add_triggers(kOneCall);
  if (parallel) grammar.add_triggers(kListOfCalls);
  return rules;
}

absl::StatusOr<std::vector<PastCall>> ReadPastCalls(JsonValue tool_calls) {
  std::vector<PastCall> calls;
  if (!tool_calls.is_list()) return tool_calls.Bad("a list of calls");
  for (const JsonValue call : tool_calls.elements()) {
    const absl::StatusOr<JsonValue> function = FunctionOf(call, ToolStyle::kNested);
    if (!function.ok()) return function.status();
    const absl::StatusOr<JsonValue> name = function->FindNeeded("name");
    if (!name.ok()) return name.status();
    const std::optional<JsonValue> arguments = function->Find("arguments");
    if (arguments.has_value() && !arguments->is_string()) {
      return arguments->Bad("a string of JSON");
    }
    const absl::StatusOr<JsonValue> id = call.FindNeeded("id");
    if (!id.ok()) return id.status();
    calls.push_back({*id, *name, arguments.has_value() ? *arguments->Text() : ""});
  }
  return calls;
}

absl::StatusOr<std::string> CallHistory::TextWithCalls(std::string text,
                                                       const std::vector<PastCall>& calls) {
  if (calls.empty()) return text;
  if (absl::Status status = Add(calls); !status.ok()) return status;
  if (!EndsALine(text)) text.push_back('\n');
  if (calls.size() > 1) text.push_back('[');
  for (size_t i = 0; i < calls.size(); ++i) {
    if (i > 0) text.append(kJsonBetweenItems);
    AppendCall(*calls[i].name.Text(), calls[i].arguments, &text);
  }
  if (calls.size() > 1) text.push_back(']');
  return text;
}

absl::Status CallHistory::Add(const std::vector<PastCall>& calls) {
  for (const PastCall& call : calls) {
    if (absl::Status status = CheckName(call.name); !status.ok()) return status;
    if (!call.id.is_string()) return call.id.Bad("a string");
    calls_.insert_or_assign(std::string(*call.id.Text()),
                            Call{std::string(*call.name.Text()), next_++});
  }
  return absl::OkStatus();
}

absl::StatusOr<CallHistory::Call> CallHistory::Find(JsonValue id) const {
  if (!id.is_string()) return id.Bad("a string");
  const auto call = calls_.find(*id.Text());
  if (call == calls_.end()) return id.Bad("the id of a call in an earlier assistant message");
  return call->second;
}

std::string CallHistory::ResultText(const Call& call, absl::string_view result, bool failed) {
  const std::string fence = FenceFor(result);
  return absl::StrCat(call.name, failed ? " failed:\n" : ":\n", fence, "tool_output\n", result,
                      "\n", fence);
}

}  // namespace hearth
