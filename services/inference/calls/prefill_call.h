// PrefillCall: one Prefill call, answered when its prefix was published, or could not be.
//
// Thread safety and ownership: as GenerateCall's.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_PREFILL_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_PREFILL_CALL_H_

#include <grpcpp/grpcpp.h>

#include <cassert>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/prompt_work.h"
#include "services/serving/calls/call_gate.h"
#include "services/serving/calls/fair_pool.h"
#include "worker/engine/engine.h"

namespace hearth {

class PrefillCall final : public grpc::ServerUnaryReactor,
                          public std::enable_shared_from_this<PrefillCall> {
 public:
  // `call` is null when the gate is closed. `response` is gRPC's and lives until OnDone.
  PrefillCall(std::unique_ptr<CallGate::Call> call, grpc::CallbackServerContext* context,
              grpc::ByteBuffer* response)
      : call_(std::move(call)), context_(context), start_(absl::Now()), response_(response) {}

  // Start or Refuse begins each call, which then keeps itself until OnDone. As GenerateCall::Start.
  void Start(FairPool* pool, const std::string& tenant, uint64_t bytes, MakeRequest make,
             Engine* engine);
  // Ends the call without a request.
  void Refuse(absl::Status status) {
    assert(self_ == nullptr);
    self_ = shared_from_this();
    End(std::move(status));
  }

  void OnCancel() override;
  void OnDone() override;

 private:
  void Submit(Engine* engine, EngineRequest request);
  void Prepared(Engine* engine, absl::StatusOr<EngineRequest> prepared) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::unique_ptr<CallGate::Call> call_;  // until OnDone
  grpc::CallbackServerContext* const context_;
  const absl::Time start_;
  std::shared_ptr<PrefillCall> self_;  // held for gRPC

  absl::Mutex mutex_;
  std::shared_ptr<EngineRequestHandle> handle_ ABSL_GUARDED_BY(mutex_);
  v1::PrefillResponse answer_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer* const response_ ABSL_PT_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool preparing_ ABSL_GUARDED_BY(mutex_) = false;  // the prompt is, or will be
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_PREFILL_CALL_H_
