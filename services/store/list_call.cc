#include "services/store/list_call.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/caller_gone.h"
#include "services/rpc/slice_wire.h"
#include "services/rpc/status_conversion.h"
#include "services/serving/calls/enter_call.h"
#include "services/store/result_conversion.h"

namespace hearth {
namespace {

// Each step starts one write or the end; gRPC calls the next one.
class ListCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  ListCall(std::unique_ptr<CallGate::Call> call, grpc::CallbackServerContext* context)
      : call_(std::move(call)), context_(context) {}

  void Start(TieredStore* store, const absl::StatusOr<Identity>& caller, FairPool* calls,
             StreamLimit* streams, const grpc::ByteBuffer& bytes) {
    if (call_ == nullptr) return End(CallGate::ClosedError());
    if (!caller.ok()) return End(caller.status());
    v1::ListRequest request;
    if (absl::Status status = ParseSmallMessage(bytes, &request); !status.ok()) return End(status);
    const absl::StatusOr<std::string> tenant = caller->TenantOf(request.tenant());
    if (!tenant.ok()) return End(tenant.status());
    absl::StatusOr<std::shared_ptr<void>> place = streams->Enter(*caller);
    if (!place.ok()) return End(place.status());
    place_ = *std::move(place);
    call_->note()->tenant = *tenant;
    const auto look = [this, store, tenant = *tenant] {
      points_ = store->List(tenant);
      Next();
    };
    const absl::Status accepted = calls->Submit(caller->ShareName(), bytes.Length(), look);
    if (!accepted.ok()) End(accepted);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End(CallerGone());
    Next();
  }
  void OnDone() override { delete this; }

 private:
  void Next() {
    if (next_ == points_.size()) return End(absl::OkStatus());
    v1::RestorePointInfo info;
    RestorePointToProto(points_[next_++], &info);
    current_ = MessageBytes(info);
    StartWrite(&current_);
  }
  void End(const absl::Status& status) {
    const absl::Status noted = call_ == nullptr ? status : call_->Finish(status);
    Finish(ToGrpcStatus(noted, context_));
  }

  const std::unique_ptr<CallGate::Call> call_;  // null when the gate is closed
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<void> place_;
  std::vector<RestorePoint> points_;
  size_t next_ = 0;
  grpc::ByteBuffer current_;  // read by gRPC while it is written
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartList(TieredStore* store, CallGate* gate,
                                                      Identities* identities, FairPool* calls,
                                                      StreamLimit* streams,
                                                      grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer& request) {
  const absl::StatusOr<Identity> caller = CallerOf(identities, *context);
  auto call = EnterCall(gate, caller, "List", *context, request.Length());
  auto* const reactor = new ListCall(std::move(call), context);
  reactor->Start(store, caller, calls, streams, request);
  return reactor;
}

}  // namespace hearth
