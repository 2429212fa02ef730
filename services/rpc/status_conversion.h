// Converts between absl::Status and grpc::Status, with the retry hint.
//
// Codes map one to one. kResourceExhausted carries a hint when to retry, in milliseconds, in the
// trailing metadata "retry-after-ms". A kInvalidArgument whose message begins with a field's path
// ("sampling.top_p: is 3; ...") carries a google.rpc.BadRequest with it. Thread safety: pure
// functions, apart from the context.
#ifndef HEARTH_SERVICES_RPC_STATUS_CONVERSION_H_
#define HEARTH_SERVICES_RPC_STATUS_CONVERSION_H_

#include <grpcpp/support/status.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace grpc {
class ServerContextBase;
}  // namespace grpc

namespace hearth {

inline constexpr char kRetryAfterMsKey[] = "retry-after-ms";
inline constexpr uint32_t kDefaultRetryAfterMs = 1000;
// Messages are sent in HTTP/2 trailers, which many peers limit to 8 KiB in total.
inline constexpr size_t kMaxStatusMessageBytes = 2048;

grpc::Status ToGrpcStatus(const absl::Status& status);
// Converts `status`, and adds the retry hint to the call of `context` if the code is
// kResourceExhausted. REQUIRES: the status of the call was not sent yet.
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase* context);

// Returns the path of the field with which `message` begins; empty if `message` is not about a
// field.
absl::string_view FieldOf(absl::string_view message);

absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_STATUS_CONVERSION_H_
