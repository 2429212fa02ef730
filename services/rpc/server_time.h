// The time of a server's clock, which its answers to short calls have as HTTP's have a Date.
//
// It travels as metadata, so that no message of the API has it. Thread safety: pure functions,
// apart from the context.
#ifndef HEARTH_SERVICES_RPC_SERVER_TIME_H_
#define HEARTH_SERVICES_RPC_SERVER_TIME_H_

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <optional>

#include "absl/time/time.h"

namespace hearth {

inline constexpr char kServerTimeKey[] = "hearth-unix-time-ms";

// REQUIRES: nothing of the answer was sent yet.
void SendServerTime(absl::Time now, grpc::ServerContextBase* context);
// None where the server is of a version without it. REQUIRES: the call has ended.
std::optional<absl::Time> ServerTimeOf(const grpc::ClientContext& context);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_SERVER_TIME_H_
