#include "services/cache_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/explain_call.h"
#include "services/fetch_call.h"
#include "services/late_answer.h"
#include "services/lease_call.h"
#include "services/list_call.h"
#include "services/proto_conversion.h"
#include "services/publish_call.h"
#include "services/quarantine_call.h"
#include "services/status_conversion.h"
#include "services/store_conversion.h"
#include "services/store_watch.h"

namespace hearth {
template <typename Request, typename Body>
grpc::ServerUnaryReactor* CacheService::RunCall(const char* method,
                                                grpc::CallbackServerContext* context,
                                                const Request& request, Body body) {
  const auto begin = [&](const Identity& caller,
                         const std::shared_ptr<LateAnswer>& answer) -> absl::Status {
    const auto run = [answer, body, caller] { answer->Finish(body(caller)); };
    if (short_calls_.TrySchedule(0, run)) return absl::OkStatus();
    return absl::ResourceExhaustedError("too many calls wait; try again later");
  };
  return AnswerLater(gate_, identities_, method, context, request.ByteSizeLong(), begin);
}

CacheService::CacheService(TieredStore* store, CallGate* gate, std::string version,
                           Identities* identities)
    : store_(store),
      gate_(gate),
      version_(std::move(version)),
      identities_(identities),
      start_(absl::Now()) {}

void CacheService::SetPatience(absl::Duration patience) {
  publish_places_.SetWindow(patience);
  fetch_places_.SetWindow(patience);
}

void CacheService::SetClock(Clock* clock) {
  publish_places_.SetClock(clock);
  fetch_places_.SetClock(clock);
}

void CacheService::LookAtStreams() {
  absl::call_once(looking_, [this] {
    looker_ = std::make_unique<RepeatingThread>([this] {
      publish_places_.Look();
      fetch_places_.Look();
      return kStreamLook;
    });
  });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* CacheService::Fetch(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  LookAtStreams();
  return StartFetch(store_, gate_, identities_, &lookups_, &readers_, &offer_, &fetch_places_,
                    context, *request);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* CacheService::Publish(
    grpc::CallbackServerContext* context) {
  LookAtStreams();
  return StartPublish(store_, gate_, identities_, &lookups_, &committers_, &publish_places_,
                      context);
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

grpc::ServerUnaryReactor* CacheService::Pin(grpc::CallbackServerContext* context,
                                            const v1::PinRequest* request,
                                            v1::PinResponse* response) {
  return RunCall("Pin", context, *request,
                 [=](const Identity& caller) { return DoPin(caller, *request, true, response); });
}

grpc::ServerUnaryReactor* CacheService::Unpin(grpc::CallbackServerContext* context,
                                              const v1::PinRequest* request,
                                              v1::PinResponse* response) {
  return RunCall("Unpin", context, *request,
                 [=](const Identity& caller) { return DoPin(caller, *request, false, response); });
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

grpc::ServerUnaryReactor* CacheService::Drop(grpc::CallbackServerContext* context,
                                             const v1::DropRequest* request,
                                             v1::DropResponse* response) {
  return RunCall("Drop", context, *request,
                 [=](const Identity& caller) { return DoDrop(caller, *request, response); });
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

grpc::ServerUnaryReactor* CacheService::Quarantine(grpc::CallbackServerContext* context,
                                                   const v1::QuarantineRequest* request,
                                                   v1::QuarantineResponse* response) {
  return StartQuarantine(store_, gate_, identities_, &lookups_, context, *request, response);
}

grpc::ServerWriteReactor<v1::RestorePointInfo>* CacheService::List(
    grpc::CallbackServerContext* context, const v1::ListRequest* request) {
  return StartList(store_, gate_, identities_, &short_calls_, &list_streams_, context, *request);
}

grpc::ServerUnaryReactor* CacheService::Stats(grpc::CallbackServerContext* context,
                                              const v1::StatsRequest* request,
                                              v1::StatsResponse* response) {
  return RunCall("Stats", context, *request,
                 [=](const Identity& caller) { return DoStats(caller, *request, response); });
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
