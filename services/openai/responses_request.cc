#include "services/openai/responses_request.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/error_reason.h"
#include "services/openai/chat_reader.h"
#include "services/openai/openai_fields.h"
#include "services/openai/tools.h"
#include "worker/text/prompt.h"

namespace hearth {
namespace {

// ItemReader: adds the items of `input` to a chat.
//
//   message of the assistant --+
//   function_call -------------+--> one assistant message, which ends at any other item
//   function_call -------------+
//   function_call_output ---------> the result of a call
class ItemReader {
 public:
  ItemReader(ChatReader* chat, UnknownFields* unknown) : chat_(chat), unknown_(unknown) {}

  // Reads the instructions, which may be absent, and the input.
  absl::Status ReadAll(std::optional<JsonValue> instructions, std::optional<JsonValue> input);

 private:
  absl::Status AddText(const char* role, JsonValue text);
  absl::Status ReadItem(JsonValue item);
  absl::Status ReadMessage(JsonValue item);
  absl::Status ReadCall(JsonValue item);
  absl::Status ReadResult(JsonValue item);
  // Reads the field `name`, a text or a list of parts.
  absl::Status ReadContent(JsonValue item, const char* name, v1::ChatMessage* made);
  // Adds the open assistant message, if there is one.
  absl::Status CloseAnswer();

  ChatReader* const chat_;
  UnknownFields* const unknown_;
  std::optional<v1::ChatMessage> answer_;  // the open assistant message
  std::vector<PastCall> calls_;            // its calls
  std::optional<JsonValue> last_call_;     // the item of the last call
  bool keeps_calls_ = false;               // a breakpoint follows the calls
};

absl::Status ItemReader::AddText(const char* role, JsonValue text) {
  v1::ChatMessage made;
  made.set_role(role);
  absl::Status status = ChatReader::ReadText(text, &made);
  if (status.ok()) chat_->AddMessage(std::move(made));
  return status;
}

absl::Status ItemReader::ReadContent(JsonValue item, const char* name, v1::ChatMessage* made) {
  const std::optional<JsonValue> content = item.Find(name);
  if (!content.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(item.Path(), ".", name, ": is missing"));
  }
  if (content->is_string()) return ChatReader::ReadText(*content, made);
  if (!content->is_list()) return content->Bad(kContentForms);
  for (const JsonValue part : content->elements()) {
    absl::Status status =
        chat_->ReadPart(part, kInItemPart, {"input_text", "output_text", "text"}, made);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ItemReader::CloseAnswer() {
  if (!answer_.has_value()) return absl::OkStatus();
  v1::ChatMessage made = *std::exchange(answer_, std::nullopt);
  if (!calls_.empty()) {
    if (absl::Status s = chat_->AddCalls(*last_call_, calls_, &made); !s.ok()) return s;
    if (keeps_calls_) made.mutable_parts()->rbegin()->set_cache_breakpoint(true);
  }
  calls_.clear();
  keeps_calls_ = false;
  chat_->AddMessage(std::move(made));
  return absl::OkStatus();
}

absl::Status ItemReader::ReadMessage(JsonValue item) {
  constexpr char kRoles[] = "system, developer, user or assistant";
  const std::optional<JsonValue> role = item.Find("role");
  if (!role.has_value()) return item.Refuse(absl::StrCat("must have a role: ", kRoles));
  const bool is_system = role->Is("system") || role->Is("developer"),
             is_answer = role->Is("assistant");
  if (!is_system && !is_answer && !role->Is("user")) return role->Bad(kRoles);
  if (absl::Status s = CloseAnswer(); !s.ok()) return s;
  v1::ChatMessage made;
  made.set_role(is_system ? "system" : std::string(*role->Text()));
  if (absl::Status s = ReadContent(item, "content", &made); !s.ok()) return s;
  v1::ContentPart* const last = made.parts().empty() ? nullptr : &*made.mutable_parts()->rbegin();
  if (absl::Status s = chat_->ReadBreakpoints(item, kInItem, last); !s.ok()) return s;
  if (is_answer) {
    answer_ = std::move(made);
  } else {
    chat_->AddMessage(std::move(made));
  }
  return absl::OkStatus();
}

absl::Status ItemReader::ReadCall(JsonValue item) {
  const absl::StatusOr<JsonValue> id = item.FindNeeded("call_id"), name = item.FindNeeded("name");
  if (!id.ok()) return id.status();
  if (!name.ok()) return name.status();
  const std::optional<JsonValue> arguments = item.Find("arguments");
  if (arguments.has_value() && !arguments->is_string()) return arguments->Bad("a string of JSON");
  if (!answer_.has_value()) answer_.emplace().set_role("assistant");
  calls_.push_back({*id, *name, arguments.has_value() ? *arguments->Text() : ""});
  last_call_ = item;
  v1::ContentPart end;
  absl::Status status = chat_->ReadBreakpoints(item, kInItem, &end);
  keeps_calls_ = keeps_calls_ || end.cache_breakpoint();
  return status;
}

absl::Status ItemReader::ReadResult(JsonValue item) {
  if (absl::Status s = CloseAnswer(); !s.ok()) return s;
  const absl::StatusOr<JsonValue> id = item.FindNeeded("call_id");
  if (!id.ok()) return id.status();
  v1::ChatMessage made;
  if (absl::Status s = ReadContent(item, "output", &made); !s.ok()) return s;
  const absl::StatusOr<v1::ChatMessage*> added = chat_->AddResult(item, *id, std::move(made));
  if (!added.ok()) return added.status();
  return chat_->ReadBreakpoints(item, kInItem, &*(*added)->mutable_parts()->rbegin());
}

absl::Status ItemReader::ReadItem(JsonValue item) {
  constexpr char kTypes[] = "message, function_call, function_call_output or reasoning";
  if (!item.is_object()) return item.Bad("an object");
  const std::optional<JsonValue> type = item.Find("type");
  if (!type.has_value() && !item.Find("role").has_value()) {
    return item.Refuse(absl::StrCat("must have a type: ", kTypes));
  }
  if (type.has_value() && type->Is("reasoning")) return absl::OkStatus();
  if (absl::Status s = CheckOpenAiFields(item, kInItem, unknown_); !s.ok()) return s;
  if (!type.has_value() || type->Is("message")) return ReadMessage(item);
  if (type->Is("function_call")) return ReadCall(item);
  if (type->Is("function_call_output")) return ReadResult(item);
  if (type->Is("item_reference")) {
    return WithReason(item.Refuse("must be the item itself, because nothing is stored; got an "
                                  "item_reference"),
                      kUnsupportedParameter);
  }
  return WithReason(type->Bad(kTypes), kUnsupportedParameter);
}

absl::Status ItemReader::ReadAll(std::optional<JsonValue> instructions,
                                 std::optional<JsonValue> input) {
  if (instructions.has_value()) {
    if (absl::Status s = AddText("system", *instructions); !s.ok()) return s;
  }
  if (!input.has_value()) return absl::InvalidArgumentError("input: is missing");
  if (input->is_string()) return AddText("user", *input);
  if (!input->is_list() || input->size() == 0) return input->Bad("a text or a list of items");
  if (input->size() > kMaxChatMessages) {
    return input->Refuse(
        absl::StrCat("must have at most ", kMaxChatMessages, " items; got ", input->size()));
  }
  for (const JsonValue item : input->elements()) {
    if (absl::Status status = ReadItem(item); !status.ok()) return status;
  }
  return CloseAnswer();
}

absl::Status AddPrompt(JsonFields* fields, const std::vector<Tool>& tools, bool keeps_system,
                       const TemplateTools* own, OpenAiRequest* request) {
  v1::PromptInput prompt;
  ChatReader chat(prompt.mutable_chat(), &request->unknown, keeps_system, request->common.ttl_s(),
                  own);
  prompt.mutable_chat()->set_answer_prefix(request->answer.answer_prefix);
  if (absl::Status s = chat.AddTools(tools, fields->Find("tools")); !s.ok()) return s;
  ItemReader items(&chat, &request->unknown);
  absl::Status status = items.ReadAll(fields->Find("instructions"), fields->Find("input"));
  if (!status.ok()) return status;
  chat.Finish();
  request->common.set_ttl_s(chat.ttl_s());
  request->earlier_calls = chat.calls();
  request->prompts.push_back(std::move(prompt));
  return absl::OkStatus();
}

// Checks the field `include`. Only log probabilities would change the response: the other values
// are about reasoning and about tools of OpenAI's servers.
absl::Status CheckInclude(std::optional<JsonValue> include) {
  if (!include.has_value()) return absl::OkStatus();
  if (!include->is_list()) return include->Bad("a list of strings");
  for (const JsonValue value : include->elements()) {
    if (!value.is_string()) return value.Bad("a string");
    if (!value.Is("message.output_text.logprobs")) continue;
    return WithReason(value.Refuse("is not supported by this server; leave it out: "
                                   "/v1/chat/completions serves log probabilities"),
                      kUnsupportedParameter);
  }
  return absl::OkStatus();
}

// Returns JSON of the request's fields that the response repeats. Each field begins with a comma.
std::string RepeatedFields(const JsonFields& fields) {
  constexpr std::pair<const char*, const char*> kFields[] = {
      {"instructions", "null"},
      {"max_output_tokens", "null"},
      {"metadata", "{}"},
      {"parallel_tool_calls", "true"},
      {"prompt_cache_key", "null"},
      {"temperature", "null"},
      {"text", R"({"format":{"type":"text"}})"},
      {"tool_choice", "\"auto\""},
      {"tools", "[]"},
      {"top_p", "null"}};
  std::string made;
  for (const auto& [name, otherwise] : kFields) {
    const std::optional<JsonValue> field = fields.Find(name);
    std::string value;
    if (field.has_value()) field->Write(&value, kMaxRepeatedBytes);
    if (value.empty() || made.size() + value.size() > kMaxRepeatedBytes) value = otherwise;
    absl::StrAppend(&made, ",\"", name, "\":", value);
  }
  const std::optional<JsonValue> options = fields.Find("prompt_cache_options");
  const bool compares = options.has_value() && options->Find("comparison_response_id").has_value();
  absl::StrAppend(&made, ",\"prompt_cache_diagnostics\":",
                  compares ? R"({"type":"comparison_response_not_found"})" : "null");
  return made;
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseResponses(JsonValue body, const ParseTerms& terms) {
  OpenAiRequest request;
  request.is_chat = true;
  bool is_explicit = false, parallel = true;
  uint64_t max_tokens = kChatTokens;
  JsonFields fields = FieldsOf(body, kInResponses);
  fields.Add(CheckOpenAiFields(body, kInResponses, &request.unknown));
  fields.Add(ReadCommon(&fields, kChatTokens, &request));
  fields.Count("max_output_tokens", 1, UINT32_MAX, &max_tokens);
  fields.Add(ReadCacheOptions(&fields, &is_explicit, &request));
  fields.Bool("parallel_tool_calls", &parallel);
  fields.Add(CheckInclude(fields.Find("include")));
  if (const auto metadata = fields.Find("metadata"); metadata.has_value()) {
    fields.Add(metadata->CheckObject());
  }
  if (!fields.status().ok()) return fields.status();
  if (request.prewarm && request.stream) {
    return fields.Find("stream")->Bad("false if prompt_cache_options.prewarm is true");
  }
  SetAnswers(/*n=*/1, max_tokens, &request);
  request.sent.max_new_tokens = "max_output_tokens";
  request.sent.messages = "input";
  const absl::StatusOr<std::vector<Tool>> tools =
      ReadTools(fields.Find("tools"), &request.unknown, ToolStyle::kFlat);
  if (!tools.ok()) return tools.status();
  const absl::StatusOr<ToolChoice> choice =
      ReadToolChoice(fields.Find("tool_choice"), *tools, ToolStyle::kFlat);
  if (!choice.ok()) return choice.status();
  const absl::StatusOr<AnswerForm> form = ReadTextForm(fields.Find("text"), terms);
  if (!form.ok()) return form.status();
  const TemplateTools* const own = terms.own_template;
  absl::Status status = Constrain(RulesOf(*tools, *choice, parallel, *form, own), &request);
  if (status.ok()) status = AddPrompt(&fields, *tools, !is_explicit, own, &request);
  if (!status.ok()) return status;
  request.repeated = RepeatedFields(fields);
  return request;
}

}  // namespace hearth
