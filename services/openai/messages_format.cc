#include "services/openai/messages_format.h"

#include <cassert>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/error_reason.h"
#include "services/openai/http_error.h"
#include "services/serving/canonical_json.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

const char* ErrorTypeOf(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "api_error";
  }
}

// Returns the fields of the usage about the prompt and the answer.
std::string MessagesUsage(const AnswerUsage& usage) {
  assert(usage.cached_tokens + usage.written_tokens <= usage.prompt_tokens);
  return absl::StrCat(
      "{\"input_tokens\":", usage.prompt_tokens - usage.cached_tokens - usage.written_tokens,
      ",\"cache_creation_input_tokens\":", usage.written_tokens,
      ",\"cache_read_input_tokens\":", usage.cached_tokens,
      ",\"output_tokens\":", usage.generated_tokens,
      ",\"cache_creation\":null,\"server_tool_use\":null,\"service_tier\":null",
      usage.cache.empty() ? "" : ",\"hearth_cache\":", usage.cache, "}");
}

// Returns whether the text is JSON if each number is replaced by 0. AppendCanonicalJson refuses
// numbers that no double holds, such as 1e400; the grammar of the call allowed them.
bool IsJsonExceptNumbers(absl::string_view text) {
  std::string plain;
  bool in_string = false, is_escaped = false, in_number = false;
  for (const char c : text) {
    const bool continues = in_number && absl::StrContains(".eE+-", c);
    in_number =
        !in_string && (absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '-' || continues);
    if (in_number) {
      if (plain.empty() || plain.back() != '0') plain += '0';
      continue;
    }
    plain += c;
    if (c == '"' && !is_escaped) in_string = !in_string;
    is_escaped = in_string && c == '\\' && !is_escaped;
  }
  return Json::accept(plain);
}

void AddMessagesEvent(absl::string_view type, absl::string_view fields, std::string* out) {
  absl::StrAppend(out, "event: ", type, "\ndata: {\"type\":\"", type, "\"", fields, "}\n\n");
}

}  // namespace

std::string MessagesErrorBody(int http_status, absl::string_view message) {
  return JsonLine(
      {{"type", "error"},
       {"error", {{"type", ErrorTypeOf(http_status)}, {"message", std::string(message)}}}});
}

std::string MessagesErrorBody(const absl::Status& status) {
  SentNames sent;
  sent.stop = "stop_sequences";
  // Claude Code reads both numbers from this text.
  const std::string excess = PromptExcessOf(status);
  return MessagesErrorBody(
      HttpStatusOf(status.code()),
      excess.empty() ? ErrorMessage(status, sent) : absl::StrCat("prompt is too long: ", excess));
}

MessagesFormat::MessagesFormat(const OpenAiRequest& request, const ResponseTerms& terms,
                               const Tokenizer* /*tokenizer*/)
    : terms_(terms), earlier_calls_(request.earlier_calls), has_answer_(!request.prewarm) {}

std::string MessagesFormat::Head() const {
  std::string head = "{\"id\":";
  AppendJsonString(terms_.id, &head);
  head += ",\"type\":\"message\",\"role\":\"assistant\",\"model\":";
  AppendJsonString(terms_.model, &head);
  return head + ",\"container\":null,\"diagnostics\":null,\"content\":[";
}

std::string MessagesFormat::ToolUseId(size_t call) const {
  const std::string id = CallId(terms_.request_id, earlier_calls_, /*answer=*/0, call);
  return absl::StrCat("toolu_", absl::StripPrefix(id, "call_"));
}

void MessagesFormat::NoteEnd(AnswerEnd end, absl::string_view stop_string) {
  if (end == AnswerEnd::kLength || !has_answer_) {
    stop_reason_ = "max_tokens";
  } else if (end == AnswerEnd::kToolCalls) {
    stop_reason_ = "tool_use";
  } else if (end == AnswerEnd::kStopString) {
    stop_reason_ = "stop_sequence";
    stop_sequence_ = std::string(stop_string);
  }
}

std::string MessagesFormat::EndFields() const {
  std::string fields = absl::StrCat("\"stop_reason\":\"", stop_reason_, "\",\"stop_sequence\":");
  if (stop_sequence_.empty()) return fields + "null,\"stop_details\":null";
  AppendJsonString(stop_sequence_, &fields);
  return fields + ",\"stop_details\":null";
}

void MessagesFormat::Begin(std::optional<uint64_t> /*seed*/, const AnswerUsage& usage,
                           std::string* out) {
  AddMessagesEvent(
      "message_start",
      absl::StrCat(",\"message\":", Head(),
                   "],\"stop_reason\":null,\"stop_sequence\":null,\"stop_details\":null,"
                   "\"usage\":",
                   MessagesUsage(usage), "}"),
      out);
}

void MessagesFormat::OpenBlock(CallPiece::Kind kind, absl::string_view block, std::string* out) {
  CloseBlock(out);
  open_ = kind;
  AddMessagesEvent("content_block_start",
                   absl::StrCat(",\"index\":", blocks_++, ",\"content_block\":", block), out);
}

void MessagesFormat::CloseBlock(std::string* out) {
  if (!open_.has_value()) return;
  assert(blocks_ > 0);
  AddMessagesEvent("content_block_stop", absl::StrCat(",\"index\":", blocks_ - 1), out);
  open_.reset();
}

void MessagesFormat::AddPieces(size_t /*index*/, absl::Span<const CallPiece> pieces,
                               const TokenLog* /*log*/, std::string* out) {
  for (const CallPiece& piece : pieces) {
    if (piece.text.empty()) continue;
    if (piece.kind == CallPiece::kName) {
      OpenBlock(CallPiece::kArguments,
                absl::StrCat("{\"type\":\"tool_use\",\"id\":\"", ToolUseId(piece.call),
                             "\",\"name\":\"", piece.text, "\",\"input\":{}}"),
                out);
      continue;
    }
    const bool is_text = piece.kind == CallPiece::kText;
    if (is_text && open_ != CallPiece::kText) {
      OpenBlock(CallPiece::kText, R"({"type":"text","text":"","citations":null})", out);
    }
    assert(blocks_ > 0 && open_ == (is_text ? CallPiece::kText : CallPiece::kArguments));
    std::string delta =
        absl::StrCat(",\"index\":", blocks_ - 1, ",\"delta\":{\"type\":\"",
                     is_text ? "text_delta\",\"text\":" : "input_json_delta\",\"partial_json\":");
    AppendJsonString(piece.text, &delta);
    AddMessagesEvent("content_block_delta", delta + "}", out);
  }
}

void MessagesFormat::EndAnswer(size_t /*index*/, AnswerEnd end, absl::string_view stop_string,
                               std::string* out) {
  NoteEnd(end, stop_string);
  if (blocks_ == 0) {
    OpenBlock(CallPiece::kText, R"({"type":"text","text":"","citations":null})", out);
  }
  CloseBlock(out);
}

void MessagesFormat::End(const AnswerUsage& usage, std::string* out) {
  AddMessagesEvent("message_delta",
                   absl::StrCat(",\"delta\":{", EndFields(), "},\"usage\":", MessagesUsage(usage)),
                   out);
  AddMessagesEvent("message_stop", "", out);
}

void MessagesFormat::Fail(const absl::Status& status, std::string* out) {
  absl::StrAppend(out, "event: error\ndata: ", MessagesErrorBody(status), "\n\n");
}

absl::string_view MessagesFormat::Waiting() const {
  return "event: ping\ndata: {\"type\":\"ping\"}\n\n";
}

void MessagesFormat::BeginWhole(std::optional<uint64_t> /*seed*/, HeldText* out) {
  out->Append(Head());
}

void MessagesFormat::WriteAnswer(size_t /*index*/, const WholeAnswer& answer, HeldText* out) {
  NoteEnd(answer.end, answer.stop_string);
  if (!has_answer_) return;
  const ReadAnswer& read = answer.read;
  const size_t calls = read.calls.size() - (read.is_cut ? 1 : 0);
  if (!read.text.empty() || calls == 0) {
    out->Append("{\"type\":\"text\",\"text\":");
    out->AppendString(read.text);
    out->Append(",\"citations\":null}");
  }
  for (size_t i = 0; i < calls; ++i) {
    const std::string& arguments = read.calls[i].arguments;
    std::string input;
    if (out->Hold(2 * arguments.size()) && !AppendCanonicalJson(arguments, &input)) {
      input = IsJsonExceptNumbers(arguments) ? arguments : "{}";
    }
    out->Append(absl::StrCat(i > 0 || !read.text.empty() ? "," : "",
                             "{\"type\":\"tool_use\",\"id\":\"", ToolUseId(i), "\",\"name\":\"",
                             read.calls[i].name, "\",\"input\":"));
    out->Append(input);
    out->Append("}");
  }
}

void MessagesFormat::EndWhole(const AnswerUsage& usage, HeldText* out) {
  out->Append(absl::StrCat("],", EndFields(), ",\"usage\":", MessagesUsage(usage), "}"));
}

}  // namespace hearth
