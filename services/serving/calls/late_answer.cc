#include "services/serving/calls/late_answer.h"

namespace hearth {

grpc::ServerUnaryReactor* AnswerLater(
    Admission* admission, const char* method, grpc::CallbackServerContext* context, uint64_t bytes,
    absl::FunctionRef<absl::Status(const Identity&, const std::shared_ptr<LateAnswer>&)> begin) {
  std::unique_ptr<Admission::Call> call;
  const absl::StatusOr<Identity> caller = admission->Enter(method, *context, bytes, &call);
  absl::Status begun = caller.status();
  const auto answer = std::make_shared<LateAnswer>(context, std::move(call));
  grpc::ServerUnaryReactor* reactor = answer->reactor();
  if (begun.ok()) begun = begin(*caller, answer);
  if (!begun.ok()) answer->Finish(std::move(begun));
  return reactor;
}

}  // namespace hearth
