// What travels with a call beside its messages, as metadata, so that no message of the API has it:
// the id of a request, which its lines in the logs of client, worker and store have in common, and
// the time of a server's clock, which its answers to short calls have as HTTP's have a Date.
//
// Thread safety: pure functions apart from randomness and their context.
#ifndef HEARTH_SERVICES_RPC_CALL_METADATA_H_
#define HEARTH_SERVICES_RPC_CALL_METADATA_H_

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <optional>
#include <string>

#include "absl/time/time.h"

namespace hearth {

inline constexpr char kRequestIdKey[] = "hearth-request-id";
inline constexpr size_t kMaxRequestIdBytes = 64;

// 16 hex digits.
std::string NewRequestId();
// Sends nothing when `id` is empty.
void SendRequestId(const std::string& id, grpc::ClientContext* context);
// The caller's own, if it is letters, digits, '-', '_' and '.', and not too long; else a new one.
std::string RequestIdOf(const grpc::ServerContextBase& context);

inline constexpr char kServerTimeKey[] = "hearth-unix-time-ms";

// REQUIRES: nothing of the answer was sent yet.
void SendServerTime(absl::Time now, grpc::ServerContextBase* context);
// None where the server is of a version without it. REQUIRES: the call has ended.
std::optional<absl::Time> ServerTimeOf(const grpc::ClientContext& context);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_CALL_METADATA_H_
