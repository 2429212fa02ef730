#include "services/cache_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/fetch_call.h"
#include "services/lease_call.h"
#include "services/proto_conversion.h"
#include "services/publish_call.h"
#include "services/status_conversion.h"
#include "services/store_conversion.h"
#include "services/store_watch.h"

namespace hearth {
namespace {

// Enters the gate, runs `body`, converts its outcome.
template <typename Body>
grpc::Status RunCall(CallGate* gate, const char* method, grpc::ServerContext* context, Body body) {
  std::unique_ptr<CallGate::Call> call = gate->Enter(method);
  if (call == nullptr) return ToGrpcStatus(CallGate::ClosedError());
  return ToGrpcStatus(call->Finish(body()), context);
}

}  // namespace

CacheService::CacheService(TieredStore* store, CallGate* gate, std::string version)
    : store_(store), gate_(gate), version_(std::move(version)), start_(absl::Now()) {}

grpc::ServerWriteReactor<grpc::ByteBuffer>* CacheService::Fetch(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return StartFetch(store_, gate_, &readers_, &offer_, context, *request);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* CacheService::Publish(
    grpc::CallbackServerContext* context) {
  return StartPublish(store_, gate_, &committers_, &publish_streams_, context);
}

grpc::ServerWriteReactor<v1::LeaseResponse>* CacheService::Lease(
    grpc::CallbackServerContext* context, const v1::LeaseRequest* request) {
  return StartLease(store_, gate_, &readers_, context, *request);
}

grpc::Status CacheService::Explain(grpc::ServerContext* context, const v1::ExplainRequest* request,
                                   v1::ExplainResponse* response) {
  return RunCall(gate_, "Explain", context, [&] { return DoExplain(*request, response); });
}

absl::Status CacheService::DoExplain(const v1::ExplainRequest& request,
                                     v1::ExplainResponse* response) {
  absl::StatusOr<PrefixQuery> query = QueryFromProto(request.prefix());
  if (!query.ok()) return query.status();
  ObserveFields(store_, request.prefix());
  absl::StatusOr<ExplainReport> report = store_->Explain(*query);
  if (!report.ok()) return report.status();
  ReportToProto(*report, response);
  return absl::OkStatus();
}

grpc::Status CacheService::Pin(grpc::ServerContext* context, const v1::PinRequest* request,
                               v1::PinResponse* response) {
  return RunCall(gate_, "Pin", context, [&] { return DoPin(*request, true, response); });
}

grpc::Status CacheService::Unpin(grpc::ServerContext* context, const v1::PinRequest* request,
                                 v1::PinResponse* response) {
  return RunCall(gate_, "Unpin", context, [&] { return DoPin(*request, false, response); });
}

absl::Status CacheService::DoPin(const v1::PinRequest& request, bool pinned,
                                 v1::PinResponse* response) {
  absl::StatusOr<Digest> id = IdFromProto(request.restore_point_id());
  if (!id.ok()) return id.status();
  absl::StatusOr<std::string> tenant = TenantOf(request.tenant());
  if (!tenant.ok()) return tenant.status();
  absl::StatusOr<RestorePoint> point = store_->SetPinned(*id, *tenant, pinned);
  if (!point.ok()) return point.status();
  RestorePointToProto(*point, response->mutable_restore_point());
  return absl::OkStatus();
}

grpc::Status CacheService::Drop(grpc::ServerContext* context, const v1::DropRequest* request,
                                v1::DropResponse* response) {
  return RunCall(gate_, "Drop", context, [&] { return DoDrop(*request, response); });
}

absl::Status CacheService::DoDrop(const v1::DropRequest& request, v1::DropResponse* response) {
  absl::StatusOr<std::string> tenant = TenantOf(request.tenant());
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
  return RunCall(gate_, "List", context, [&]() -> absl::Status {
    absl::StatusOr<std::string> tenant = TenantOf(request->tenant());
    if (!tenant.ok()) return tenant.status();
    for (const RestorePoint& point : store_->List(*tenant)) {
      v1::RestorePointInfo info;
      RestorePointToProto(point, &info);
      if (!writer->Write(info)) return absl::CancelledError("the caller went away");
    }
    return absl::OkStatus();
  });
}

grpc::Status CacheService::Stats(grpc::ServerContext* context, const v1::StatsRequest*,
                                 v1::StatsResponse* response) {
  return RunCall(gate_, "Stats", context, [&] {
    StatsToProto(store_->Stats(), response);
    response->set_version(version_);
    response->set_uptime_s(absl::ToDoubleSeconds(absl::Now() - start_));
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<v1::WatchEvent>* CacheService::Watch(grpc::CallbackServerContext* context,
                                                              const v1::WatchRequest* request) {
  return StartWatch(store_, gate_, &watch_streams_, kMaxWatchStreams, context, *request);
}

}  // namespace hearth
