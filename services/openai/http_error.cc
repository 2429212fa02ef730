#include "services/openai/http_error.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/error_reason.h"
#include "services/rpc/status_conversion.h"

namespace hearth {

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    // The server sets the deadline, not the caller. So the status says that the caller may retry.
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
      return 503;
    default:
      return 500;
  }
}

std::string ErrorMessage(const absl::Status& status, const SentNames& sent) {
  const std::string stop_list = absl::StrCat(sent.stop, "[");
  // The beginning of a field path of the gRPC API, and the path in the body. A beginning with ": "
  // at its end is a whole path.
  const std::pair<absl::string_view, absl::string_view> paths[] = {
      {"chat: ", sent.messages},
      {"chat.messages", sent.messages},
      {"max_new_tokens: ", sent.max_new_tokens},
      {"n: ", sent.n},
      {"stop: ", sent.stop},
      {"stop[", stop_list},
      {"sampling.bad_token_ids: ", sent.bad_token_ids},
      {"sampling.prompt_logprobs: ", "echo"},
      {"sampling.", ""},
      {"chat.", ""}};
  constexpr absl::string_view kParts = "].parts[";
  std::string said(status.message());
  for (const auto& [own, of_body] : paths) {
    if (!absl::StartsWith(said, own)) continue;
    const size_t path = absl::EndsWith(own, ": ") ? own.size() - 2 : own.size();
    said.replace(0, path, of_body.data(), of_body.size());
    break;
  }
  const size_t parts = said.find(kParts.data());
  if (parts < said.find(": ")) said.replace(parts, kParts.size(), "].content[");
  return said;
}

std::string OpenAiErrorBody(const absl::Status& status, const SentNames& sent) {
  const int http = HttpStatusOf(status.code());
  const std::string message = ErrorMessage(status, sent);
  const bool is_about_field = http == 400 || http == 404;
  return HttpErrorBody(http, message, is_about_field ? FieldOf(message) : "", ReasonOf(status));
}

std::string OpenAiErrorBody(const absl::Status& status) {
  return OpenAiErrorBody(status, SentNames());
}

void SendError(const absl::Status& status, HttpHeaders headers, std::string body,
               HttpAnswer* answer) {
  const int http = HttpStatusOf(status.code());
  if (http == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  answer->Send(http, headers, std::move(body));
}

void SendError(const absl::Status& status, HttpHeaders headers, HttpAnswer* answer) {
  SendError(status, std::move(headers), OpenAiErrorBody(status), answer);
}

}  // namespace hearth
