#include "services/cache_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/explain_call.h"
#include "services/fetch_call.h"
#include "services/lease_call.h"
#include "services/proto_conversion.h"
#include "services/publish_call.h"
#include "services/status_conversion.h"
#include "services/store_conversion.h"
#include "services/store_watch.h"

namespace hearth {
template <typename Body>
grpc::Status CacheService::RunCall(const char* method, grpc::ServerContext* context, Body body) {
  std::unique_ptr<CallGate::Call> call = gate_->Enter(method);
  if (call == nullptr) return ToGrpcStatus(CallGate::ClosedError());
  const absl::StatusOr<Identity> caller = CallerOf(identities_, *context);
  const absl::Status status = caller.ok() ? body(*caller) : caller.status();
  return ToGrpcStatus(call->Finish(status), context);
}

CacheService::CacheService(TieredStore* store, CallGate* gate, std::string version,
                           Identities* identities)
    : store_(store),
      gate_(gate),
      version_(std::move(version)),
      identities_(identities),
      start_(absl::Now()) {}

grpc::ServerWriteReactor<grpc::ByteBuffer>* CacheService::Fetch(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return StartFetch(store_, gate_, identities_, &lookups_, &readers_, &offer_, &fetch_streams_,
                    patience_, context, *request);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* CacheService::Publish(
    grpc::CallbackServerContext* context) {
  return StartPublish(store_, gate_, identities_, &lookups_, &committers_, &publish_streams_,
                      patience_, context);
}

grpc::ServerWriteReactor<v1::LeaseResponse>* CacheService::Lease(
    grpc::CallbackServerContext* context, const v1::LeaseRequest* request) {
  return StartLease(store_, gate_, identities_, &lookups_, &lease_streams_, context, *request);
}

grpc::ServerUnaryReactor* CacheService::Explain(grpc::CallbackServerContext* context,
                                                const v1::ExplainRequest* request,
                                                v1::ExplainResponse* response) {
  return StartExplain(store_, gate_, identities_, &lookups_, &explain_calls_, context, *request,
                      response);
}

grpc::Status CacheService::Pin(grpc::ServerContext* context, const v1::PinRequest* request,
                               v1::PinResponse* response) {
  return RunCall("Pin", context,
                 [&](const Identity& caller) { return DoPin(caller, *request, true, response); });
}

grpc::Status CacheService::Unpin(grpc::ServerContext* context, const v1::PinRequest* request,
                                 v1::PinResponse* response) {
  return RunCall("Unpin", context,
                 [&](const Identity& caller) { return DoPin(caller, *request, false, response); });
}

absl::Status CacheService::DoPin(const Identity& caller, const v1::PinRequest& request, bool pinned,
                                 v1::PinResponse* response) {
  absl::StatusOr<Digest> id = IdFromProto(request.restore_point_id());
  if (!id.ok()) return id.status();
  absl::StatusOr<std::string> tenant = caller.TenantOf(request.tenant());
  if (!tenant.ok()) return tenant.status();
  absl::StatusOr<RestorePoint> point = store_->SetPinned(*id, *tenant, pinned);
  if (!point.ok()) return point.status();
  RestorePointToProto(*point, response->mutable_restore_point());
  return absl::OkStatus();
}

grpc::Status CacheService::Drop(grpc::ServerContext* context, const v1::DropRequest* request,
                                v1::DropResponse* response) {
  return RunCall("Drop", context,
                 [&](const Identity& caller) { return DoDrop(caller, *request, response); });
}

absl::Status CacheService::DoDrop(const Identity& caller, const v1::DropRequest& request,
                                  v1::DropResponse* response) {
  absl::StatusOr<std::string> tenant = caller.TenantOf(request.tenant());
  if (!tenant.ok()) return tenant.status();
  if (request.all() && !request.restore_point_id().empty()) {
    return absl::InvalidArgumentError("drop: both all and restore_point_id are set; choose one");
  }
  absl::StatusOr<DropResult> result;
  if (request.all()) {
    result = store_->DropAll(*tenant, request.force());
  } else {
    absl::StatusOr<Digest> id = IdFromProto(request.restore_point_id());
    if (!id.ok()) return id.status();
    result = store_->Drop(*id, *tenant, request.force());
  }
  if (!result.ok()) return result.status();
  response->set_dropped(result->dropped);
  response->set_freed_bytes(result->freed_bytes);
  response->set_kept_pinned(result->kept_pinned);
  return absl::OkStatus();
}

grpc::Status CacheService::List(grpc::ServerContext* context, const v1::ListRequest* request,
                                grpc::ServerWriter<v1::RestorePointInfo>* writer) {
  return RunCall("List", context, [&](const Identity& caller) -> absl::Status {
    absl::StatusOr<std::string> tenant = caller.TenantOf(request->tenant());
    if (!tenant.ok()) return tenant.status();
    for (const RestorePoint& point : store_->List(*tenant)) {
      v1::RestorePointInfo info;
      RestorePointToProto(point, &info);
      if (!writer->Write(info)) return absl::CancelledError("the caller went away");
    }
    return absl::OkStatus();
  });
}

grpc::Status CacheService::Stats(grpc::ServerContext* context, const v1::StatsRequest* request,
                                 v1::StatsResponse* response) {
  return RunCall("Stats", context,
                 [&](const Identity& caller) { return DoStats(caller, *request, response); });
}

absl::Status CacheService::DoStats(const Identity& caller, const v1::StatsRequest& request,
                                   v1::StatsResponse* response) {
  response->set_version(version_);
  response->set_uptime_s(absl::ToDoubleSeconds(absl::Now() - start_));
  if (caller.sees_all() && request.tenant().empty()) {
    StatsToProto(store_->Stats(), response);
    return absl::OkStatus();
  }
  const absl::StatusOr<std::string> tenant = caller.TenantOf(request.tenant());
  if (!tenant.ok()) return tenant.status();
  response->set_incarnation(store_->incarnation());
  FiguresToProto(store_->StatsOf(*tenant), response);
  response->mutable_tenant()->set_tenant(*tenant);
  return absl::OkStatus();
}

grpc::ServerWriteReactor<v1::WatchEvent>* CacheService::Watch(grpc::CallbackServerContext* context,
                                                              const v1::WatchRequest* request) {
  return StartWatch(store_, gate_, identities_, &watch_streams_, context, *request);
}

}  // namespace hearth
