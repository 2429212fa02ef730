#include "services/rpc/status_conversion.h"

#include <grpcpp/server_context.h>

#include <string>

namespace hearth {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message().substr(0, kMaxStatusMessageBytes));
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message);
}

grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase* context) {
  if (absl::IsResourceExhausted(status)) {
    context->AddTrailingMetadata(kRetryAfterMsKey, std::to_string(kDefaultRetryAfterMs));
  }
  return ToGrpcStatus(status);
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  // Both libraries number the codes of google.rpc.Code; a peer may send a number beyond them.
  const int code = static_cast<int>(status.error_code());
  const bool known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      status.error_message());
}

}  // namespace hearth
