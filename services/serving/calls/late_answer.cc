#include "services/serving/calls/late_answer.h"

#include "services/serving/calls/enter_call.h"

namespace hearth {

grpc::ServerUnaryReactor* AnswerLater(
    CallGate* gate, Identities* identities, const char* method,
    grpc::CallbackServerContext* context, uint64_t bytes,
    absl::FunctionRef<absl::Status(const Identity&, const std::shared_ptr<LateAnswer>&)> begin) {
  const absl::StatusOr<Identity> caller = CallerOf(identities, *context);
  auto call = EnterCall(gate, caller, method, *context, bytes);
  absl::Status begun = call == nullptr ? CallGate::ClosedError() : caller.status();
  const auto answer = std::make_shared<LateAnswer>(context, std::move(call));
  grpc::ServerUnaryReactor* reactor = answer->reactor();
  if (begun.ok()) begun = begin(*caller, answer);
  if (!begun.ok()) answer->Finish(std::move(begun));
  return reactor;
}

}  // namespace hearth
