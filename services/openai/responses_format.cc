#include "services/openai/responses_format.h"

#include <cassert>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/digest.h"
#include "proto/error_reason.h"
#include "services/openai/http_error.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

constexpr size_t kIdDigits = 24;
// Room in an event for everything but the text of an item.
constexpr size_t kEventBytes = 1024;
// Fields that the server does not serve, and what a response says of them.
constexpr char kUnservedFields[] =
    R"(,"background":false,"conversation":null,"max_tool_calls":null,"moderation":null,)"
    R"("previous_response_id":null,"prompt":null,"prompt_cache_options":null,)"
    R"("prompt_cache_retention":null,"reasoning":{"effort":null,"summary":null},)"
    R"("safety_identifier":null,"service_tier":"default","store":false,"top_logprobs":0,)"
    R"("truncation":"disabled","user":null)";

// Returns JSON of the field `error` of a failed response.
std::string ResponsesError(const absl::Status& status, const SentNames& sent) {
  const int http = HttpStatusOf(status.code());
  const char* const usual = http == 429   ? "rate_limit_exceeded"
                            : http >= 500 ? "server_error"
                                          : "invalid_prompt";
  const std::string reason = ReasonOf(status);
  return JsonLine(
      {{"code", reason.empty() ? usual : reason}, {"message", ErrorMessage(status, sent)}});
}

std::string ResponsesUsage(const AnswerUsage& usage) {
  std::string json = JsonLine(
      {{"input_tokens", usage.prompt_tokens},
       {"input_tokens_details",
        {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", usage.written_tokens}}},
       {"output_tokens", usage.generated_tokens},
       {"output_tokens_details", {{"reasoning_tokens", 0}}},
       {"total_tokens", usage.prompt_tokens + usage.generated_tokens}});
  if (usage.cache.empty()) return json;
  json.pop_back();
  return absl::StrCat(json, ",\"hearth_cache\":", usage.cache, "}");
}

}  // namespace

ResponsesFormat::ResponsesFormat(const OpenAiRequest& request, const ResponseTerms& terms,
                                 const Tokenizer* /*tokenizer*/)
    : terms_(terms),
      sent_(request.sent),
      repeated_(request.repeated),
      earlier_calls_(request.earlier_calls),
      messages_(static_cast<size_t>(request.prompts[0].chat().messages_size())) {}

std::string ResponsesFormat::Head(std::optional<uint64_t> seed) const {
  Json made = {{"id", terms_.id},
               {"object", "response"},
               {"created_at", terms_.created},
               {"model", terms_.model}};
  if (seed.has_value()) made["seed"] = *seed;
  std::string head = JsonLine(made);
  head.pop_back();
  absl::StrAppend(&head, repeated_, kUnservedFields, ",\"output\":[");
  return head;
}

std::string ResponsesFormat::Tail(absl::string_view status, absl::string_view error,
                                  absl::string_view usage) const {
  const bool is_cut = status == "incomplete";
  return absl::StrCat(
      "],\"status\":\"", status, "\",\"error\":", error,
      ",\"incomplete_details\":", is_cut ? R"({"reason":"max_output_tokens"})" : "null",
      ",\"completed_at\":",
      status == "completed" ? absl::StrCat(absl::ToUnixSeconds(absl::Now())) : "null",
      ",\"usage\":", usage, "}");
}

template <typename... Fields>
void ResponsesFormat::AddEvent(std::string* out, absl::string_view type, const Fields&... fields) {
  absl::StrAppend(out, "event: response.", type, "\ndata: {\"type\":\"response.", type,
                  "\",\"sequence_number\":", sequence_++);
  absl::StrAppend(out, fields...);
  absl::StrAppend(out, "}\n\n");
}

void ResponsesFormat::AddResponse(std::string* out, absl::string_view status,
                                  absl::string_view error, absl::string_view usage) {
  out->reserve(out->size() + head_.size() + items_.size() + kEventBytes + error.size());
  assert(!head_.empty());
  const absl::string_view event = sequence_ == 0 ? "created" : status;
  AddEvent(out, event, ",\"response\":", head_, items_, Tail(status, error, usage));
}

void ResponsesFormat::Begin(std::optional<uint64_t> seed, const AnswerUsage& /*usage*/,
                            std::string* out) {
  head_ = Head(seed);
  AddResponse(out, "in_progress", "null", "null");  // the event "created"
  AddResponse(out, "in_progress", "null", "null");
}

// The id depends on the request's id, the number of messages in the prompt and the index of the
// item. A client may send several requests of one conversation with the same request id.
void ResponsesFormat::BeginMessage() {
  item_ = Item::kMessage;
  const Digest digest =
      Sha256(absl::StrCat(terms_.request_id, " ", messages_, " item ", item_count_++));
  item_id_ = absl::StrCat("msg_", DigestHex(digest).substr(0, kIdDigits));
}

void ResponsesFormat::BeginCall(size_t answer, size_t call, absl::string_view name) {
  item_ = Item::kCall;
  ++item_count_;
  call_id_ = CallId(terms_.request_id, earlier_calls_, answer, call);
  item_id_ = absl::StrCat("fc_", call_id_.substr(call_id_.find('_') + 1));
  call_name_ = std::string(name);
}

std::string ResponsesFormat::ItemStart(bool has_text) const {
  if (item_ == Item::kCall) {
    return absl::StrCat("{\"type\":\"function_call\",\"id\":\"", item_id_, "\",\"call_id\":\"",
                        call_id_, "\",\"name\":\"", call_name_, "\",\"arguments\":\"");
  }
  return absl::StrCat(
      "{\"type\":\"message\",\"id\":\"", item_id_, "\",\"role\":\"assistant\",\"content\":[",
      has_text ? R"({"type":"output_text","annotations":[],"logprobs":[],"text":")" : "");
}

std::string ResponsesFormat::ItemEnd(bool has_text, absl::string_view status) const {
  const char* const content = item_ == Item::kCall ? "\"" : has_text ? "\"}]" : "]";
  return absl::StrCat(content, ",\"status\":\"", status, "\"}");
}

void ResponsesFormat::OpenItem(std::string* out) {
  assert(item_ != Item::kNone && item_count_ > 0 && text_.empty());
  const size_t index = item_count_ - 1;
  AddEvent(out, "output_item.added", ",\"output_index\":", index, ",\"item\":", ItemStart(false),
           ItemEnd(false, "in_progress"));
  if (item_ == Item::kCall) return;
  AddEvent(out, "content_part.added", ",\"item_id\":\"", item_id_, "\",\"output_index\":", index,
           R"(,"content_index":0,"part":{"type":"output_text","annotations":[],"logprobs":[],)"
           R"("text":""})");
}

void ResponsesFormat::AddDelta(absl::string_view text, std::string* out) {
  assert(item_ != Item::kNone);
  std::string json;
  AppendJsonString(text, &json);
  const absl::string_view inside = absl::string_view(json).substr(1, json.size() - 2);
  absl::StrAppend(&text_, inside);
  const bool is_call = item_ == Item::kCall;
  AddEvent(out, is_call ? "function_call_arguments.delta" : "output_text.delta", ",\"item_id\":\"",
           item_id_, "\",\"output_index\":", item_count_ - 1,
           is_call ? "" : ",\"content_index\":0,\"logprobs\":[]", ",\"delta\":", json);
}

void ResponsesFormat::CloseItem(bool is_complete, std::string* out) {
  if (item_ == Item::kNone) return;
  out->reserve(out->size() + 3 * (text_.size() + kEventBytes));
  const std::string place =
      absl::StrCat(",\"item_id\":\"", item_id_, "\",\"output_index\":", item_count_ - 1);
  if (item_ == Item::kCall) {
    AddEvent(out, "function_call_arguments.done", place, ",\"name\":\"", call_name_,
             "\",\"arguments\":\"", text_, "\"");
  } else {
    AddEvent(out, "output_text.done", place, ",\"content_index\":0,\"logprobs\":[],\"text\":\"",
             text_, "\"");
    AddEvent(out, "content_part.done", place,
             R"(,"content_index":0,"part":{"type":"output_text","annotations":[],"logprobs":[],)"
             R"("text":")",
             text_, "\"}");
  }
  const std::string start = ItemStart(true);
  const std::string end = ItemEnd(true, is_complete ? "completed" : "incomplete");
  AddEvent(out, "output_item.done", ",\"output_index\":", item_count_ - 1, ",\"item\":", start,
           text_, end);
  absl::StrAppend(&items_, items_.empty() ? "" : ",", start, text_, end);
  text_.clear();
  item_ = Item::kNone;
}

void ResponsesFormat::AddPieces(size_t index, absl::Span<const CallPiece> pieces,
                                const TokenLog* /*log*/, std::string* out) {
  for (const CallPiece& piece : pieces) {
    if (piece.text.empty()) continue;
    if (piece.kind == CallPiece::kName) {
      CloseItem(/*is_complete=*/true, out);
      BeginCall(index, piece.call, piece.text);
      OpenItem(out);
      continue;
    }
    if (piece.kind == CallPiece::kText && item_ != Item::kMessage) {
      CloseItem(/*is_complete=*/true, out);
      BeginMessage();
      OpenItem(out);
    }
    assert(piece.kind == CallPiece::kText || item_ == Item::kCall);
    AddDelta(piece.text, out);
  }
}

void ResponsesFormat::EndAnswer(size_t /*index*/, AnswerEnd end, absl::string_view /*stop_string*/,
                                std::string* out) {
  end_ = end;
  if (item_count_ == 0) {
    BeginMessage();
    OpenItem(out);
  }
  // If the last call is complete, the answer ends with kToolCalls.
  const bool is_complete =
      end == AnswerEnd::kToolCalls || (end != AnswerEnd::kLength && item_ == Item::kMessage);
  CloseItem(is_complete, out);
}

void ResponsesFormat::End(const AnswerUsage& usage, std::string* out) {
  const char* const status = end_ == AnswerEnd::kLength ? "incomplete" : "completed";
  AddResponse(out, status, "null", ResponsesUsage(usage));
}

void ResponsesFormat::Fail(const absl::Status& status, std::string* out) {
  if (head_.empty()) Begin(std::nullopt, AnswerUsage(), out);
  AddResponse(out, "failed", ResponsesError(status, sent_), "null");
}

// An item that ends is part of four events, and of items_ until the end of the stream.
uint64_t ResponsesFormat::bytes() const {
  return repeated_.capacity() + head_.capacity() + 2 * items_.capacity() + 4 * text_.capacity();
}

void ResponsesFormat::BeginWhole(std::optional<uint64_t> seed, HeldText* out) {
  out->Append(Head(seed));
}

void ResponsesFormat::WriteItem(absl::string_view text, bool is_complete, HeldText* out) {
  out->Append(item_count_ > 1 ? "," : "");
  std::string start = ItemStart(true),
              end = ItemEnd(true, is_complete ? "completed" : "incomplete");
  start.pop_back();  // AppendString writes the quotes
  out->Append(start);
  out->AppendString(text);
  out->Append(absl::string_view(end).substr(1));
}

void ResponsesFormat::WriteAnswer(size_t index, const WholeAnswer& answer, HeldText* out) {
  end_ = answer.end;
  const std::vector<ReadAnswer::Call>& calls = answer.read.calls;
  if (calls.empty() || !answer.read.text.empty()) {
    BeginMessage();
    WriteItem(answer.read.text, end_ != AnswerEnd::kLength || !calls.empty(), out);
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    BeginCall(index, i, calls[i].name);
    const bool is_last = i + 1 == calls.size();
    WriteItem(calls[i].arguments, end_ == AnswerEnd::kToolCalls || !is_last, out);
  }
}

void ResponsesFormat::EndWhole(const AnswerUsage& usage, HeldText* out) {
  const char* const status = end_ == AnswerEnd::kLength ? "incomplete" : "completed";
  out->Append(Tail(status, "null", ResponsesUsage(usage)));
}

}  // namespace hearth
