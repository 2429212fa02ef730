// LateAnswer: a unary call that is answered later, by the thread that did its work.
//
// Thread safety: call Finish once, from any thread. Ownership: shared by all threads that may
// answer; gRPC keeps the call's request and response until Finish.
#ifndef HEARTH_SERVICES_SERVING_CALLS_LATE_ANSWER_H_
#define HEARTH_SERVICES_SERVING_CALLS_LATE_ANSWER_H_

#include <grpcpp/grpcpp.h>

#include <cassert>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "services/rpc/slice_wire.h"
#include "services/rpc/status_conversion.h"
#include "services/serving/access/identity.h"
#include "services/serving/calls/admission.h"

namespace hearth {

class LateAnswer {
 public:
  // `call` is null if the server drains.
  LateAnswer(grpc::CallbackServerContext* context, std::unique_ptr<Admission::Call> call)
      : context_(context), reactor_(context->DefaultReactor()), call_(std::move(call)) {}
  LateAnswer(const LateAnswer&) = delete;
  LateAnswer& operator=(const LateAnswer&) = delete;

  grpc::ServerUnaryReactor* reactor() const { return reactor_; }
  const grpc::CallbackServerContext& context() const { return *context_; }
  Admission::Call* call() { return call_.get(); }  // null if the server drains

  void Finish(absl::Status status) {
    assert(!finished_);
    finished_ = true;
    if (call_ != nullptr) status = call_->Finish(std::move(status));
    call_.reset();  // ends the call before its caller receives the response
    reactor_->Finish(ToGrpcStatus(status, context_));
  }

 private:
  grpc::CallbackServerContext* const context_;
  grpc::ServerUnaryReactor* const reactor_;
  std::unique_ptr<Admission::Call> call_;
  bool finished_ = false;
};

// Begins a unary call with a request of `bytes`. Calls `begin` at once, unless the server drains or
// the caller is not authenticated. `begin` calls Finish, or keeps the LateAnswer for a later
// Finish. If `begin` returns an error, the call ends with the error. `method` must be a literal.
inline grpc::ServerUnaryReactor* AnswerLater(
    Admission* admission, const char* method, grpc::CallbackServerContext* context, uint64_t bytes,
    absl::FunctionRef<absl::Status(const Identity&, const std::shared_ptr<LateAnswer>&)> begin) {
  std::unique_ptr<Admission::Call> call;
  const absl::StatusOr<Identity> caller = admission->Enter(method, *context, bytes, &call);
  absl::Status begun = caller.status();
  const auto answer = std::make_shared<LateAnswer>(context, std::move(call));
  grpc::ServerUnaryReactor* const reactor = answer->reactor();
  if (begun.ok()) begun = begin(*caller, answer);
  if (!begun.ok()) answer->Finish(std::move(begun));
  return reactor;
}

// Answers a unary call on a pool, in the tenant's turn: `work` gets the parsed request and makes
// the response. If the caller has left by then, `work` does not run. `admit` is called at once and
// submits the job to the pool. If `admit` returns an error, the call ends with the error.
template <typename Request, typename Response, typename Admit, typename Work>
grpc::ServerUnaryReactor* AnswerOnPool(Admission* admission, const char* method,
                                       grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request, grpc::ByteBuffer* response,
                                       Admit admit, Work work) {
  const grpc::ByteBuffer bytes = TakeRequest(request);
  const auto begin = [&](const Identity& caller, const std::shared_ptr<LateAnswer>& answer) {
    return admit(caller, bytes, answer.get(), [=] {
      Request parsed;
      Response made;
      absl::Status status = ParseAwaited(answer->context(), bytes, &parsed);
      if (status.ok()) status = work(caller, parsed, &made);
      if (status.ok()) *response = MessageBytes(made);
      answer->Finish(std::move(status));
    });
  };
  return AnswerLater(admission, method, context, bytes.Length(), begin);
}

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_LATE_ANSWER_H_
