#include "services/rpc/status_conversion.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "proto/error_details.pb.h"

namespace hearth {
namespace {

// Longer messages get no details: details repeat the message in base 64, and the trailers would be
// too long.
constexpr size_t kMaxDetailedMessageBytes = 1024;

// Whether `word` is the beginning of messages about a whole call, and so not a field.
bool IsCall(absl::string_view word) {
  return word == "publish" || word == "message" || word == "explain";
}

bool IsLower(char c) { return c >= 'a' && c <= 'z'; }

// Returns the length of the path at the beginning of `message`. Paths in a schema have names of the
// client: "tools[0].function.parameters.$defs.F[\"a b\"]". Only names that follow a "." may have
// capitals, "$" and "-", so that the first word of a sentence is no path.
size_t PathLength(absl::string_view message) {
  bool is_inner = false;
  size_t end = 0;
  while (end < message.size()) {
    const char c = message[end];
    if (absl::StartsWith(message.substr(end), "[\"")) {  // up to the next quote without a backslash
      size_t quote = end + 2;
      while (quote < message.size() && message[quote] != '"')
        quote += message[quote] == '\\' ? 2 : 1;
      if (!absl::StartsWith(message.substr(std::min(quote, message.size())), "\"]")) break;
      end = quote + 2;
      continue;
    }
    is_inner = is_inner || c == '.';
    const bool is_name = IsLower(c) || absl::ascii_isdigit(static_cast<unsigned char>(c)) ||
                         c == '_' || c == '.' || c == '[' || c == ']';
    const bool is_inner_name =
        is_inner && (absl::ascii_isupper(static_cast<unsigned char>(c)) || c == '$' || c == '-');
    if (!is_name && !is_inner_name) break;
    ++end;
  }
  return end;
}

// Returns a google.rpc.Status with a BadRequest, which clients of every language can read.
std::string BadRequestDetails(absl::string_view field, const std::string& message) {
  google::rpc::Status details;
  details.set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
  details.set_message(message);
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field(std::string(field));
  absl::string_view description = absl::string_view(message).substr(field.size());
  absl::ConsumePrefix(&description, ":");
  absl::ConsumePrefix(&description, " ");
  violation->set_description(std::string(description));
  details.add_details()->PackFrom(bad);
  return details.SerializeAsString();
}

}  // namespace

absl::string_view FieldOf(absl::string_view message) {
  const size_t end = PathLength(message);
  const absl::string_view path = message.substr(0, end), rest = message.substr(end);
  if (path.empty() || !IsLower(path[0]) || IsCall(path)) return "";
  if (absl::StartsWith(rest, ": ")) return path;
  // If the message goes on with " is " or " has ", its first word is a field only if it cannot be a
  // word of a sentence.
  const bool is_path = path.find_first_of("._[") != path.npos;
  return is_path && (absl::StartsWith(rest, " is ") || absl::StartsWith(rest, " has ")) ? path : "";
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message().substr(0, kMaxStatusMessageBytes));
  const absl::string_view field =
      absl::IsInvalidArgument(status) && message.size() <= kMaxDetailedMessageBytes
          ? FieldOf(message)
          : "";
  std::string details = field.empty() ? "" : BadRequestDetails(field, message);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message, details);
}

grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase* context) {
  if (absl::IsResourceExhausted(status)) {
    context->AddTrailingMetadata(kRetryAfterMsKey, std::to_string(kDefaultRetryAfterMs));
  }
  return ToGrpcStatus(status);
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  // gRPC and absl both use the numbers of google.rpc.Code. A peer may send an unknown number.
  const int code = static_cast<int>(status.error_code());
  const bool known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      status.error_message());
}

}  // namespace hearth
