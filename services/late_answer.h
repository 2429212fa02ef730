// LateAnswer: a unary call that is answered later, by whoever did its work.
//
// Thread safety: Finish once, from any thread. Ownership: shared by those who may answer; the
// call's request and response live until then.
#ifndef HEARTH_SERVICES_LATE_ANSWER_H_
#define HEARTH_SERVICES_LATE_ANSWER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "services/call_gate.h"
#include "services/status_conversion.h"

namespace hearth {

class LateAnswer {
 public:
  // `call` is null when the gate is closed.
  LateAnswer(grpc::CallbackServerContext* context, std::unique_ptr<CallGate::Call> call)
      : context_(context), reactor_(context->DefaultReactor()), call_(std::move(call)) {}
  LateAnswer(const LateAnswer&) = delete;
  LateAnswer& operator=(const LateAnswer&) = delete;

  grpc::ServerUnaryReactor* reactor() const { return reactor_; }
  // Kept until the answer is given.
  void Hold(std::shared_ptr<void> place) { place_ = std::move(place); }
  void Finish(absl::Status status) {
    if (call_ != nullptr) status = call_->Finish(std::move(status));
    place_.reset();
    call_.reset();
    reactor_->Finish(ToGrpcStatus(status, context_));
  }

 private:
  grpc::CallbackServerContext* const context_;
  grpc::ServerUnaryReactor* const reactor_;
  std::unique_ptr<CallGate::Call> call_;
  std::shared_ptr<void> place_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_LATE_ANSWER_H_
