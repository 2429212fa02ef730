#include "services/openai/chat_format.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "services/openai/http_error.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

const char* FinishReasonOf(AnswerEnd end) {
  switch (end) {
    case AnswerEnd::kStop:
    case AnswerEnd::kStopString:
      return "stop";
    case AnswerEnd::kLength:
      return "length";
    case AnswerEnd::kToolCalls:
      return "tool_calls";
  }
  return "stop";
}

std::string UsageJson(const AnswerUsage& usage) {
  std::string text = JsonLine(
      {{"prompt_tokens", usage.prompt_tokens},
       {"completion_tokens", usage.generated_tokens},
       {"total_tokens", usage.prompt_tokens + usage.generated_tokens},
       {"prompt_tokens_details",
        {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", usage.written_tokens}}}});
  if (usage.cache.empty()) return text;
  text.pop_back();
  return absl::StrCat(text, ",\"hearth_cache\":", usage.cache, "}");
}

}  // namespace

ChoiceFormat::ChoiceFormat(const OpenAiRequest& request, const ResponseTerms& terms,
                           const Tokenizer* tokenizer)
    : terms_(terms),
      sent_(request.sent),
      cache_key_(request.cache_key),
      include_usage_(request.include_usage),
      ends_in_usage_(request.include_usage || request.explain),
      tokenizer_(tokenizer) {}

void ChoiceFormat::SetHead(absl::string_view object, std::optional<uint64_t> seed) {
  Json made = {
      {"id", terms_.id}, {"object", object}, {"created", terms_.created}, {"model", terms_.model}};
  if (!cache_key_.empty()) made["prompt_cache_key"] = cache_key_;
  if (seed.has_value()) made["seed"] = *seed;
  envelope_ = JsonLine(made);
  envelope_.back() = ',';
  absl::StrAppend(&envelope_, "\"choices\":[");
}

void ChoiceFormat::AddEvent(size_t index, absl::string_view fields, std::string* out) const {
  absl::StrAppend(out, "data: ", envelope_, "{\"index\":", index, ",", fields, "}]",
                  include_usage_ ? ",\"usage\":null" : "", "}\n\n");
}

void ChoiceFormat::End(const AnswerUsage& usage, std::string* out) {
  if (ends_in_usage_) {
    absl::StrAppend(out, "data: ", envelope_, "],\"usage\":", UsageJson(usage), "}\n\n");
  }
  absl::StrAppend(out, "data: [DONE]\n\n");
}

void ChoiceFormat::Fail(const absl::Status& status, std::string* out) {
  absl::StrAppend(out, "data: ", ErrorBody(status), "\n\ndata: [DONE]\n\n");
}

void ChoiceFormat::WriteHead(absl::string_view object, std::optional<uint64_t> seed,
                             HeldText* out) {
  SetHead(object, seed);
  out->Append(envelope_);
}

void ChoiceFormat::BeginChoice(size_t index, HeldText* out) {
  out->Append(absl::StrCat(index == 0 ? "" : ",", "{\"index\":", index, ","));
}

void ChoiceFormat::EndWhole(const AnswerUsage& usage, HeldText* out) {
  out->Append(absl::StrCat("],\"usage\":", UsageJson(usage), "}"));
}

ChatFormat::ChatFormat(const OpenAiRequest& request, const ResponseTerms& terms,
                       const Tokenizer* tokenizer)
    : ChoiceFormat(request, terms, tokenizer),
      request_id_(terms.request_id),
      earlier_calls_(request.earlier_calls),
      answers_(request.prompts.size() * request.common.n()),
      may_call_(!request.answer.calls.names.empty()),
      stream_(request.stream) {}

void ChatFormat::Begin(std::optional<uint64_t> seed, const AnswerUsage& /*usage*/,
                       std::string* out) {
  SetHead("chat.completion.chunk", seed);
  // As in OpenAI's API: no content if the answer may begin with calls.
  const absl::string_view content = may_call_ ? "null" : "\"\"";
  for (size_t i = 0; i < answers_; ++i) {
    AddEvent(i,
             absl::StrCat(R"("delta":{"role":"assistant","content":)", content,
                          R"(},"logprobs":null,"finish_reason":null)"),
             out);
  }
}

std::string ChatFormat::CallHead(size_t answer, size_t call) const {
  return absl::StrCat("\"id\":\"", CallId(request_id_, earlier_calls_, answer, call),
                      "\",\"type\":\"function\",");
}

std::string ChatFormat::DeltaOf(size_t answer, const CallPiece& piece) const {
  std::string delta;
  if (piece.kind == CallPiece::kText) {
    delta = "{\"content\":";
    AppendJsonString(piece.text, &delta);
    return delta + "}";
  }
  delta = absl::StrCat("{\"tool_calls\":[{\"index\":", piece.call, ",");
  if (piece.kind == CallPiece::kName) {
    return absl::StrCat(delta, CallHead(answer, piece.call), "\"function\":{\"name\":\"",
                        piece.text, "\",\"arguments\":\"\"}}]}");
  }
  absl::StrAppend(&delta, "\"function\":{\"arguments\":");
  AppendJsonString(piece.text, &delta);
  return delta + "}}]}";
}

void ChatFormat::AddPieces(size_t index, absl::Span<const CallPiece> pieces, const TokenLog* log,
                           std::string* out) {
  const auto add = [&](absl::string_view delta) {
    HeldText logprobs;
    WriteLogprobs(std::exchange(log, nullptr), &logprobs);
    AddEvent(index,
             absl::StrCat("\"delta\":", delta, ",\"logprobs\":", logprobs.Take(),
                          ",\"finish_reason\":null"),
             out);
  };
  if (pieces.empty() && log != nullptr) add("{}");
  for (const CallPiece& piece : pieces) add(DeltaOf(index, piece));
}

void ChatFormat::EndAnswer(size_t index, AnswerEnd end, absl::string_view /*stop_string*/,
                           std::string* out) {
  AddEvent(
      index,
      absl::StrCat(R"("delta":{},"logprobs":null,"finish_reason":")", FinishReasonOf(end), "\""),
      out);
}

void ChatFormat::BeginWhole(std::optional<uint64_t> seed, HeldText* out) {
  WriteHead(stream_ ? "chat.completion.chunk" : "chat.completion", seed, out);
}

void ChatFormat::WriteMessage(size_t index, const ReadAnswer& read, HeldText* out) const {
  out->Append("\"message\":{\"role\":\"assistant\",\"content\":");
  if (read.calls.empty() || !read.text.empty()) {
    out->AppendString(read.text);
  } else {
    out->Append("null");
  }
  for (size_t i = 0; i < read.calls.size(); ++i) {
    out->Append(absl::StrCat(i == 0 ? ",\"tool_calls\":[{" : ",{", CallHead(index, i),
                             "\"function\":{\"name\":\"", read.calls[i].name, "\",\"arguments\":"));
    out->AppendString(read.calls[i].arguments);
    out->Append("}}");
  }
  out->Append(read.calls.empty() ? ",\"refusal\":null}" : "],\"refusal\":null}");
}

void ChatFormat::WriteAnswer(size_t index, const WholeAnswer& answer, HeldText* out) {
  BeginChoice(index, out);
  out->Append(absl::StrCat("\"finish_reason\":\"", FinishReasonOf(answer.end), "\","));
  WriteMessage(index, answer.read, out);
  out->Append(",\"logprobs\":");
  WriteLogprobs(answer.log, out);
  out->Append("}");
}

void ChatFormat::WriteLogprobs(const TokenLog* log, HeldText* out) const {
  if (log == nullptr) return out->Append("null");
  out->Append("{\"content\":[");
  log->WriteContent(tokenizer(), out);
  out->Append("],\"refusal\":null}");
}

void CompletionFormat::Begin(std::optional<uint64_t> seed, const AnswerUsage& /*usage*/,
                             std::string* /*out*/) {
  SetHead("text_completion", seed);
}

void CompletionFormat::AddPieces(size_t index, absl::Span<const CallPiece> pieces,
                                 const TokenLog* log, std::string* out) {
  if (pieces.empty() && log == nullptr) return;
  std::string text;
  for (const CallPiece& piece : pieces) text += piece.text;
  std::string fields = "\"text\":";
  AppendJsonString(text, &fields);
  HeldText logprobs;
  if (log != nullptr) {
    WriteFlat({log}, tokenizer(), &logprobs);
  } else {
    logprobs.Append("null");
  }
  absl::StrAppend(&fields, ",\"logprobs\":", logprobs.Take(), ",\"finish_reason\":null");
  AddEvent(index, fields, out);
}

void CompletionFormat::EndAnswer(size_t index, AnswerEnd end, absl::string_view /*stop_string*/,
                                 std::string* out) {
  AddEvent(
      index,
      absl::StrCat(R"("text":"","logprobs":null,"finish_reason":")", FinishReasonOf(end), "\""),
      out);
}

void CompletionFormat::BeginWhole(std::optional<uint64_t> seed, HeldText* out) {
  WriteHead("text_completion", seed, out);
}

void CompletionFormat::WriteAnswer(size_t index, const WholeAnswer& answer, HeldText* out) {
  BeginChoice(index, out);
  out->Append(absl::StrCat("\"finish_reason\":\"", FinishReasonOf(answer.end), "\",\"text\":"));
  out->AppendString(answer.read.text);
  out->Append(",\"logprobs\":");
  if (answer.log == nullptr) {
    out->Append("null");
  } else {
    std::vector<const TokenLog*> logs = {answer.log};
    if (answer.echo != nullptr) logs.insert(logs.begin(), answer.echo);
    WriteFlat(logs, tokenizer(), out);
  }
  out->Append("}");
}

}  // namespace hearth
