// PrefillCall: one Prefill, answered when what it computed was published, or could not be.
//
// Thread safety and ownership: as GenerateCall's.
#ifndef HEARTH_SERVICES_PREFILL_CALL_H_
#define HEARTH_SERVICES_PREFILL_CALL_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/inference.pb.h"
#include "services/call_gate.h"
#include "worker/engine.h"

namespace hearth {

class PrefillCall final : public grpc::ServerUnaryReactor,
                          public std::enable_shared_from_this<PrefillCall> {
 public:
  // `call` is null when the gate is closed. `response` is gRPC's and lives until OnDone.
  static std::shared_ptr<PrefillCall> Create(std::unique_ptr<CallGate::Call> call,
                                             grpc::CallbackServerContext* context,
                                             v1::PrefillResponse* response);

  // Submits and follows the request, or ends the call with the refusal.
  void Start(Engine* engine, EngineRequest request);
  // Ends the call without a request.
  void Refuse(absl::Status status);

  void OnCancel() override;
  void OnDone() override;

 private:
  PrefillCall(std::unique_ptr<CallGate::Call> call, grpc::CallbackServerContext* context,
              v1::PrefillResponse* response);
  void End(absl::Status status);

  std::unique_ptr<CallGate::Call> call_;  // until OnDone
  grpc::CallbackServerContext* const context_;
  const absl::Time start_;
  std::shared_ptr<PrefillCall> self_;  // held for gRPC

  absl::Mutex mutex_;
  std::shared_ptr<EngineRequestHandle> handle_ ABSL_GUARDED_BY(mutex_);
  v1::PrefillResponse* const response_ ABSL_PT_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_PREFILL_CALL_H_
