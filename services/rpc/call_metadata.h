// The metadata of a call: the request id and the trace, which connect the log lines of client,
// worker and store, and the caller's token.
//
// gRPC aborts the process if a value has a byte that HTTP/2 does not allow, so values are checked
// before they are sent. Thread safety: pure functions apart from random numbers and the `context`
// argument.
#ifndef HEARTH_SERVICES_RPC_CALL_METADATA_H_
#define HEARTH_SERVICES_RPC_CALL_METADATA_H_

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <string>

#include "absl/strings/string_view.h"

namespace hearth {

inline constexpr char kRequestIdKey[] = "hearth-request-id";
inline constexpr size_t kMaxRequestIdBytes = 64;

// Returns 16 random hex digits.
std::string NewRequestId();
// Sends `id`. Sends nothing if `id` is empty or has characters other than visible ASCII.
void SendRequestId(const std::string& id, grpc::ClientContext* context);

// Whether `text` can be a token: one or more visible ASCII characters, without spaces. The rule
// holds for token files and for headers.
bool IsTokenText(absl::string_view text);
// Returns `sent` if it has only letters, digits, '-', '_', '.' and is not too long, else a new id.
std::string RequestIdFrom(absl::string_view sent);

// The ids that a caller sends to connect log lines.
struct CallIds {
  std::string request_id;
  std::string traceparent;  // empty: none was sent; otherwise not yet validated
};
CallIds CallIdsOf(const grpc::ServerContextBase& context);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_CALL_METADATA_H_
