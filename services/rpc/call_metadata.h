// The id of a request, which its lines in the logs of client, worker and store have in common. It
// travels with a call beside its messages, as metadata, so that no message of the API has it.
//
// Thread safety: pure functions apart from randomness and their context.
#ifndef HEARTH_SERVICES_RPC_CALL_METADATA_H_
#define HEARTH_SERVICES_RPC_CALL_METADATA_H_

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <string>

namespace hearth {

inline constexpr char kRequestIdKey[] = "hearth-request-id";
inline constexpr size_t kMaxRequestIdBytes = 64;

// 16 hex digits.
std::string NewRequestId();
// Sends nothing when `id` is empty.
void SendRequestId(const std::string& id, grpc::ClientContext* context);
// The caller's own, if it is letters, digits, '-', '_' and '.', and not too long; else a new one.
std::string RequestIdOf(const grpc::ServerContextBase& context);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_CALL_METADATA_H_
