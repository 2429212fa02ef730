// How every call of both servers begins: through the gate, which is told where it came from.
//
// Thread safety: any thread. Ownership: the gate outlives the call.
#ifndef HEARTH_SERVICES_SERVING_CALLS_ENTER_CALL_H_
#define HEARTH_SERVICES_SERVING_CALLS_ENTER_CALL_H_

#include <cstdint>
#include <memory>

#include "services/serving/calls/call_gate.h"
#include "services/serving/door/identity.h"

namespace hearth {

// Null once the gate is closed. `caller`: as CallerOf says, which looks it up. `bytes`: of the
// message that the call begins with; `reads_on`: it goes on reading messages, and says of each what
// it took. `method` must be a literal.
std::unique_ptr<CallGate::Call> EnterCall(CallGate* gate, const absl::StatusOr<Identity>& caller,
                                          const char* method,
                                          const grpc::ServerContextBase& context, uint64_t bytes,
                                          bool reads_on = false);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_ENTER_CALL_H_
