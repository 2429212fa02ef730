#include "services/serving/calls/enter_call.h"

#include <grpcpp/server_context.h>

#include "services/rpc/request_id.h"

namespace hearth {

std::unique_ptr<CallGate::Call> EnterCall(CallGate* gate, const absl::StatusOr<Identity>& caller,
                                          const char* method,
                                          const grpc::ServerContextBase& context, uint64_t bytes,
                                          bool reads_on) {
  std::unique_ptr<CallGate::Call> call = gate->Enter(method);
  if (call == nullptr) return nullptr;
  call->CameFrom(context.peer(), bytes, reads_on);
  call->note()->request_id = RequestIdOf(context);
  if (!caller.ok()) return call;
  call->Known();
  call->note()->tenant = caller->tenant;
  return call;
}

}  // namespace hearth
