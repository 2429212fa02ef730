#include "services/openai/messages_request.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/error_reason.h"
#include "services/openai/chat_reader.h"
#include "services/openai/openai_fields.h"
#include "services/openai/tools.h"
#include "worker/text/prompt.h"
#include "worker/text/text_stream.h"

namespace hearth {
namespace {

// Maximum number of tools of a request, including those with defer_loading. Anthropic's search for
// tools has the same limit.
constexpr size_t kMaxListedTools = 10000;

absl::Status BadBlock(JsonValue block, std::optional<JsonValue> type, absl::string_view types) {
  return WithReason(
      block.Refuse(absl::StrCat("must be a block of type ", types, "; got type ",
                                type.has_value() ? type->Quote() : "nothing",
                                "; this server reads no images, documents or server tools")),
      kUnsupportedParameter);
}

// MessagesReader: reads the tools, the system text and the messages of a request.
//
// Thread safety: none.
class MessagesReader {
 public:
  MessagesReader(v1::Chat* chat, UnknownFields* unknown, const TemplateTools* own)
      : chat_(chat), unknown_(unknown), reader_(chat, unknown, /*keeps_system=*/true, 0, own) {}

  // `fields`: the fields of `body`.
  absl::Status ReadAll(JsonValue body, const JsonFields& fields);
  // Returns the tools that the answer may call: the tools of the prompt, and the deferred tools
  // that a result refers to.
  const std::vector<Tool>& callable() const { return callable_; }
  absl::StatusOr<ToolChoice> ReadChoice(std::optional<JsonValue> choice, bool* parallel) const;
  uint32_t ttl_s() const { return reader_.ttl_s(); }
  size_t calls() const { return reader_.calls(); }

 private:
  absl::Status ReadTool(JsonValue tool, std::vector<Tool>* tools);
  absl::Status ReadTools(std::optional<JsonValue> list);
  absl::Status ReadMessage(JsonValue message);
  // Reads a text, or a list of text blocks, as parts of `made`. In a result, the list may have
  // references to tools.
  absl::Status ReadContent(JsonValue content, bool in_result, v1::ChatMessage* made);
  absl::Status ReadUserBlock(JsonValue block, v1::ChatMessage* made);
  // The calls of an assistant message.
  struct Calls {
    std::vector<PastCall> list;
    std::deque<std::string> inputs;  // JSON of the arguments; `list` borrows it
    // The text of all calls is one part, so a breakpoint of any call is at the end of this part.
    v1::ContentPart end;
  };
  // Reads a block of an assistant message: sets the text of `made`, or adds a call to `calls`.
  absl::Status ReadAnswerBlock(JsonValue block, v1::ChatMessage* made, Calls* calls);
  // Reads an assistant message. As in the Responses API, a text after another text or a call begins
  // a new message of the prompt. `made` becomes the last message.
  absl::Status ReadAnswer(JsonValue message, JsonValue blocks, v1::ChatMessage* made);
  // Appends the calls to the text of `made`, and clears `calls`.
  absl::Status AddCalls(JsonValue source, Calls* calls, v1::ChatMessage* made);
  absl::Status ReadResult(JsonValue block);
  // Reads a reference to a deferred tool. The description of the tool becomes a part of `made`.
  absl::Status ReadReference(JsonValue block, v1::ChatMessage* made);
  // Adds the message, and clears the parts of `made`.
  absl::Status AddMessage(JsonValue source, v1::ChatMessage* made);
  absl::Status CountMessage(JsonValue source);

  v1::Chat* const chat_;
  UnknownFields* const unknown_;
  ChatReader reader_;
  std::vector<Tool> callable_;
  std::map<std::string, Tool, std::less<>> deferred_;  // tools that the prompt does not list yet
  size_t messages_ = 0;                                // messages of the prompt
};

absl::Status MessagesReader::ReadTool(JsonValue tool, std::vector<Tool>* tools) {
  if (absl::Status status = tool.CheckObject(); !status.ok()) return status;
  const std::optional<JsonValue> type = tool.Find("type");
  if (type.has_value() && !type->Is("custom")) {
    return WithReason(type->Bad("\"custom\", the only supported type of tool"),
                      kUnsupportedParameter);
  }
  if (absl::Status s = CheckOpenAiFields(tool, kInCustomTool, unknown_); !s.ok()) return s;
  absl::StatusOr<Tool> made = ReadFunction(tool, "input_schema");
  if (!made.ok()) return made.status();
  tools->push_back(*std::move(made));
  return absl::OkStatus();
}

absl::Status MessagesReader::ReadTools(std::optional<JsonValue> list) {
  absl::StatusOr<std::vector<Tool>> tools = ReadToolList(
      list, kMaxListedTools,
      [this](JsonValue tool, std::vector<Tool>* read) { return ReadTool(tool, read); });
  if (!tools.ok()) return tools.status();
  std::vector<size_t> kept;  // indexes in `callable_` of the tools that end at a breakpoint
  for (Tool& tool : *tools) {
    bool is_deferred = false;
    JsonFields fields = FieldsOf(tool.function, kInCustomTool);
    fields.Bool("defer_loading", &is_deferred);
    if (!fields.status().ok()) return fields.status();
    if (is_deferred) {
      deferred_.emplace(tool.name, tool);
      continue;
    }
    v1::ContentPart end;
    absl::Status status = reader_.ReadBreakpoints(tool.function, kInCustomTool, &end);
    if (!status.ok()) return status;
    if (end.cache_breakpoint()) kept.push_back(callable_.size());
    callable_.push_back(std::move(tool));
  }
  if (callable_.size() > kMaxTools) {
    return list->Refuse(absl::StrCat("must have at most ", kMaxTools,
                                     " tools without defer_loading; got ", callable_.size()));
  }
  return reader_.AddTools(callable_, list, kept);
}

absl::Status MessagesReader::CountMessage(JsonValue source) {
  if (++messages_ <= kMaxChatMessages) return absl::OkStatus();
  return source.Refuse(absl::StrCat("exceeds the limit of ", kMaxChatMessages,
                                    " messages, texts of answers and tool results in a request"));
}

absl::Status MessagesReader::AddMessage(JsonValue source, v1::ChatMessage* made) {
  if (absl::Status status = CountMessage(source); !status.ok()) return status;
  const std::string role = made->role();
  reader_.AddMessage(std::exchange(*made, v1::ChatMessage()));
  made->set_role(role);
  return absl::OkStatus();
}

absl::Status MessagesReader::ReadReference(JsonValue block, v1::ChatMessage* made) {
  if (absl::Status s = CheckOpenAiFields(block, kInBlock, unknown_); !s.ok()) return s;
  const absl::StatusOr<JsonValue> name = block.FindNeeded("tool_name");
  if (!name.ok()) return name.status();
  if (!name->is_string()) return name->Bad("a string");
  std::string text;
  const auto found = deferred_.find(*name->Text());
  if (found != deferred_.end()) {
    if (callable_.size() == kMaxTools) {
      return block.Refuse(
          absl::StrCat("must not name another tool with defer_loading: the prompt "
                       "describes ",
                       kMaxTools, " tools, which is the limit"));
    }
    AppendTool(found->second, &text);
    callable_.push_back(std::move(found->second));
    deferred_.erase(found);
  } else if (FindTool(*name, callable_).ok()) {
    text = std::string(*name->Text());  // the prompt describes this tool already
  } else {
    return name->Bad("the name of a tool in tools");
  }
  if (absl::Status status = CheckSize(block, text.size()); !status.ok()) return status;
  if (!made->parts().empty()) text.insert(0, "\n");
  v1::ContentPart* const part = made->add_parts();
  part->set_text(std::move(text));
  return reader_.ReadBreakpoints(block, kInBlock, part);
}

absl::Status MessagesReader::ReadContent(JsonValue content, bool in_result, v1::ChatMessage* made) {
  if (content.is_string()) return ChatReader::ReadText(content, made);
  if (!content.is_list()) return content.Bad("a string or a list of blocks");
  for (const JsonValue block : content.elements()) {
    if (absl::Status status = block.CheckObject(); !status.ok()) return status;
    const std::optional<JsonValue> type = block.Find("type");
    absl::Status status;
    if (type.has_value() && type->Is("text")) {
      status = reader_.ReadPart(block, kInBlock, {"text"}, made);
    } else if (in_result && type.has_value() && type->Is("tool_reference")) {
      status = ReadReference(block, made);
    } else {
      status = BadBlock(block, type, in_result ? "text or tool_reference" : "text");
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status MessagesReader::ReadResult(JsonValue block) {
  if (absl::Status s = CheckOpenAiFields(block, kInBlock, unknown_); !s.ok()) return s;
  if (absl::Status status = CountMessage(block); !status.ok()) return status;
  const absl::StatusOr<JsonValue> id = block.FindNeeded("tool_use_id");
  if (!id.ok()) return id.status();
  bool is_error = false;
  JsonFields fields = FieldsOf(block, kInBlock);
  fields.Bool("is_error", &is_error);
  if (!fields.status().ok()) return fields.status();
  v1::ChatMessage made;
  if (const auto content = block.Find("content"); content.has_value()) {
    absl::Status status = ReadContent(*content, /*in_result=*/true, &made);
    if (!status.ok()) return status;
  }
  const absl::StatusOr<v1::ChatMessage*> added =
      reader_.AddResult(block, *id, std::move(made), is_error);
  if (!added.ok()) return added.status();
  return reader_.ReadBreakpoints(block, kInBlock, &*(*added)->mutable_parts()->rbegin());
}

absl::Status MessagesReader::ReadUserBlock(JsonValue block, v1::ChatMessage* made) {
  if (absl::Status status = block.CheckObject(); !status.ok()) return status;
  const std::optional<JsonValue> type = block.Find("type");
  if (type.has_value() && type->Is("text")) {
    return reader_.ReadPart(block, kInBlock, {"text"}, made);
  }
  if (!type.has_value() || !type->Is("tool_result")) {
    return BadBlock(block, type, "text or tool_result");
  }
  if (!made->parts().empty()) {
    if (absl::Status status = AddMessage(block, made); !status.ok()) return status;
  }
  return ReadResult(block);
}

absl::Status MessagesReader::ReadAnswerBlock(JsonValue block, v1::ChatMessage* made, Calls* calls) {
  if (absl::Status status = block.CheckObject(); !status.ok()) return status;
  const std::optional<JsonValue> type = block.Find("type");
  const auto is = [&](absl::string_view name) { return type.has_value() && type->Is(name); };
  if (is("text")) return reader_.ReadPart(block, kInBlock, {"text"}, made);
  if (!is("tool_use") && !is("thinking") && !is("redacted_thinking")) {
    return BadBlock(block, type, "text, tool_use, thinking or redacted_thinking");
  }
  if (absl::Status s = CheckOpenAiFields(block, kInBlock, unknown_); !s.ok()) return s;
  if (!is("tool_use")) return absl::OkStatus();  // Gemma's chats have no reasoning part
  const absl::StatusOr<JsonValue> id = block.FindNeeded("id"), name = block.FindNeeded("name");
  if (!id.ok() || !name.ok()) return id.ok() ? name.status() : id.status();
  std::string& input = calls->inputs.emplace_back();
  if (const auto given = block.Find("input"); given.has_value()) {
    if (absl::Status status = given->CheckObject(); !status.ok()) return status;
    given->Write(&input, kMaxTextBytes + 1);
    if (absl::Status s = CheckSize(*given, input.size()); !s.ok()) return s;
  }
  calls->list.push_back({*id, *name, input});
  return reader_.ReadBreakpoints(block, kInBlock, &calls->end);
}

absl::Status MessagesReader::ReadAnswer(JsonValue message, JsonValue blocks,
                                        v1::ChatMessage* made) {
  Calls calls;
  for (const JsonValue block : blocks.elements()) {
    const std::optional<JsonValue> type = block.Find("type");
    const bool is_open = !made->parts().empty() || !calls.list.empty();
    if (is_open && type.has_value() && type->Is("text")) {
      if (absl::Status s = AddCalls(message, &calls, made); !s.ok()) return s;
      if (absl::Status s = AddMessage(block, made); !s.ok()) return s;
    }
    if (absl::Status s = ReadAnswerBlock(block, made, &calls); !s.ok()) return s;
  }
  return AddCalls(message, &calls, made);
}

absl::Status MessagesReader::AddCalls(JsonValue source, Calls* calls, v1::ChatMessage* made) {
  if (absl::Status s = reader_.AddCalls(source, calls->list, made); !s.ok()) return s;
  if (calls->end.cache_breakpoint()) made->mutable_parts()->rbegin()->set_cache_breakpoint(true);
  *calls = Calls();
  return absl::OkStatus();
}

absl::Status MessagesReader::ReadMessage(JsonValue message) {
  constexpr char kRoles[] = "user, assistant or system";
  if (absl::Status status = message.CheckObject(); !status.ok()) return status;
  const std::optional<JsonValue> role = message.Find("role");
  if (!role.has_value()) return message.Refuse(absl::StrCat("must have a role: ", kRoles));
  const bool is_user = role->Is("user"), is_answer = role->Is("assistant");
  if (!is_user && !is_answer && !role->Is("system")) return role->Bad(kRoles);
  if (absl::Status s = CheckOpenAiFields(message, kInTurn, unknown_); !s.ok()) return s;
  const absl::StatusOr<JsonValue> content = message.FindNeeded("content");
  if (!content.ok()) return content.status();
  v1::ChatMessage made;
  made.set_role(std::string(*role->Text()));
  absl::Status status;
  bool has_results = false;
  if (is_user && content->is_list()) {
    const size_t before = messages_;
    for (const JsonValue block : content->elements()) {
      if (status = ReadUserBlock(block, &made); !status.ok()) return status;
    }
    has_results = messages_ > before;
  } else if (is_answer && content->is_list()) {
    status = ReadAnswer(message, *content, &made);
  } else {
    status = ReadContent(*content, /*in_result=*/false, &made);
  }
  if (!status.ok() || (has_results && made.parts().empty())) return status;
  return AddMessage(message, &made);
}

absl::Status MessagesReader::ReadAll(JsonValue body, const JsonFields& fields) {
  if (absl::Status status = ReadTools(fields.Find("tools")); !status.ok()) return status;
  if (const auto system = fields.Find("system"); system.has_value()) {
    v1::ChatMessage made;
    made.set_role("system");
    if (absl::Status s = ReadContent(*system, /*in_result=*/false, &made); !s.ok()) return s;
    if (absl::Status status = AddMessage(*system, &made); !status.ok()) return status;
  }
  const std::optional<JsonValue> messages = fields.Find("messages");
  if (absl::Status s = ChatReader::CheckMessages(messages); !s.ok()) return s;
  for (const JsonValue message : messages->elements()) {
    if (absl::Status status = ReadMessage(message); !status.ok()) return status;
  }
  reader_.Finish();
  v1::ChatMessage* const last = &*chat_->mutable_messages()->rbegin();
  if (last->parts().empty()) return absl::OkStatus();
  return reader_.ReadBreakpoints(body, kInMessages, &*last->mutable_parts()->rbegin());
}

absl::StatusOr<ToolChoice> MessagesReader::ReadChoice(std::optional<JsonValue> choice,
                                                      bool* parallel) const {
  constexpr char kTypes[] = "auto, any, tool or none";
  ToolChoice made = AnyOf(callable_);
  if (!choice.has_value()) return made;
  bool is_single = false;
  JsonFields fields(*choice);
  fields.Bool("disable_parallel_tool_use", &is_single);
  if (!fields.status().ok()) return fields.status();
  *parallel = !is_single;
  const std::optional<JsonValue> type = choice->Find("type");
  if (!type.has_value()) return choice->Refuse(absl::StrCat("must have a type: ", kTypes));
  if (type->Is("any")) {
    made.mode = ToolChoice::kRequired;
  } else if (type->Is("none")) {
    made.mode = ToolChoice::kNone;
  } else if (type->Is("tool")) {
    made.mode = ToolChoice::kRequired;
    made.is_named = true;
    const absl::StatusOr<JsonValue> name = choice->FindNeeded("name");
    if (!name.ok()) return name.status();
    const absl::StatusOr<size_t> tool = FindTool(*name, callable_);
    if (!tool.ok() && name->is_string() && deferred_.count(*name->Text()) > 0) {
      return name->Bad("a tool without defer_loading, or a tool that a tool_reference names");
    }
    if (!tool.ok()) return tool.status();
    made.allowed = {*tool};
  } else if (!type->Is("auto")) {
    return type->Bad(kTypes);
  }
  if (made.mode == ToolChoice::kRequired && callable_.empty() && !deferred_.empty()) {
    return choice->Refuse("needs a tool without defer_loading, or a tool_reference; got none");
  }
  if (absl::Status status = CheckChoice(*choice, made, callable_); !status.ok()) return status;
  return made;
}

// Reads {"type": "json_schema", "schema": ...}.
absl::Status ReadFormat(JsonValue format, AnswerForm* form) {
  if (absl::Status status = format.CheckObject(); !status.ok()) return status;
  const absl::StatusOr<JsonValue> type = format.FindNeeded("type");
  if (!type.ok()) return type.status();
  if (!type->Is("json_schema")) {
    return WithReason(type->Bad("\"json_schema\""), kUnsupportedParameter);
  }
  const absl::StatusOr<JsonValue> schema = format.FindNeeded("schema");
  if (!schema.ok()) return schema.status();
  form->schema = *schema;
  form->path = schema->Path();
  return schema->CheckObject();
}

absl::StatusOr<AnswerForm> ReadForm(const JsonFields& fields) {
  AnswerForm form;
  std::optional<JsonValue> format = fields.Find("output_format");
  if (format.has_value()) {
    if (absl::Status status = ReadFormat(*format, &form); !status.ok()) return status;
  }
  const std::optional<JsonValue> config = fields.Find("output_config");
  if (!config.has_value()) return form;
  if (absl::Status status = config->CheckObject(); !status.ok()) return status;
  format = config->Find("format");
  if (!format.has_value()) return form;
  if (!form.is_text()) return format->Refuse("must be absent together with output_format");
  if (absl::Status status = ReadFormat(*format, &form); !status.ok()) return status;
  return form;
}

// Reads the fields about the answer, except tools and schemas.
absl::Status ReadAnswerFields(JsonFields* fields, OpenAiRequest* request) {
  constexpr uint64_t kMaxTokens = std::numeric_limits<uint32_t>::max();
  uint64_t tokens = kChatTokens;
  fields->Text("model", &request->model);
  fields->Bool("stream", &request->stream);
  fields->Bool("hearth_explain", &request->explain);
  fields->Count("max_tokens", 0, kMaxTokens, &tokens);
  ReadSampling(fields, request->common.mutable_sampling());
  const std::optional<JsonValue> stop = fields->Find("stop_sequences");
  if (stop.has_value() && !stop->is_list()) fields->Add(stop->Bad("a list of strings"));
  fields->Add(ReadTexts(stop, kMaxStopStrings,
                        [&](std::string text) { request->common.add_stop(std::move(text)); }));
  if (!fields->status().ok()) return fields->status();
  request->prewarm = tokens == 0;
  if (request->prewarm && request->stream) {
    return fields->Find("stream")->Bad("false if max_tokens is 0");
  }
  SetAnswers(/*n=*/1, request->prewarm ? 1 : tokens, request);
  return absl::OkStatus();
}

absl::StatusOr<OpenAiRequest> Parse(JsonValue body, bool is_count, const TemplateTools* own) {
  OpenAiRequest request;
  request.is_chat = true;
  JsonFields fields = FieldsOf(body, kInMessages);
  fields.Add(CheckOpenAiFields(body, kInMessages, &request.unknown));
  if (absl::Status status = ReadAnswerFields(&fields, &request); !status.ok()) return status;
  v1::PromptInput prompt;
  v1::Chat* const chat = prompt.mutable_chat();
  MessagesReader reader(chat, &request.unknown, own);
  if (absl::Status status = reader.ReadAll(body, fields); !status.ok()) return status;
  if (chat->messages().rbegin()->role() == "assistant") {
    JsonValue last = *fields.Find("messages");
    for (const JsonValue message : last.elements()) last = message;
    if (!is_count) {
      return WithReason(last.Refuse("must not be the assistant's as the last message, because "
                                    "this server does not continue answers; add a user message"),
                        kUnsupportedParameter);
    }
    chat->set_omit_generation_prompt(true);
  }
  bool parallel = true;
  const absl::StatusOr<ToolChoice> choice =
      reader.ReadChoice(fields.Find("tool_choice"), &parallel);
  if (!choice.ok()) return choice.status();
  const absl::StatusOr<AnswerForm> form = ReadForm(fields);
  if (!form.ok()) return form.status();
  absl::Status status =
      Constrain(RulesOf(reader.callable(), *choice, parallel, *form, own), &request);
  if (!status.ok()) return status;
  chat->set_answer_prefix(request.answer.answer_prefix);
  request.common.set_ttl_s(reader.ttl_s());
  request.earlier_calls = reader.calls();
  request.prompts.push_back(std::move(prompt));
  return request;
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseMessages(JsonValue body, const ParseTerms& terms) {
  return Parse(body, /*is_count=*/false, terms.own_template);
}

absl::StatusOr<OpenAiRequest> ParseCountTokens(JsonValue body, const ParseTerms& terms) {
  return Parse(body, /*is_count=*/true, terms.own_template);
}

}  // namespace hearth
