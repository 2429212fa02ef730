#include "services/store/cache_service.h"

#include <utility>

#include "absl/time/clock.h"
#include "services/rpc/slice_wire.h"
#include "services/serving/calls/late_answer.h"
#include "services/store/store_conversion.h"

namespace hearth {

template <typename Request, typename Response>
grpc::ServerUnaryReactor* CacheService::RunCall(const char* method, Context* context,
                                                const Bytes* request, Bytes* response,
                                                Body<Request, Response> body) {
  const auto admit = [this](const Identity& caller, const Bytes& bytes, LateAnswer*,
                            FairPool::Job job) -> absl::Status {
    if (absl::Status small = CheckSmall<Request>(bytes); !small.ok()) return small;
    return short_calls_.Submit(caller.ShareName(), bytes.Length(), std::move(job));
  };
  const auto work = [this, body](const Identity& caller, const Request& asked, Response* made) {
    return (this->*body)(caller, asked, made);
  };
  return AnswerOnPool<Request, Response>(admission_, method, context, request, response, admit,
                                         work);
}

CacheService::CacheService(TieredStore* store, Admission* admission, std::string version,
                           int lookup_threads)
    : store_(store),
      admission_(admission),
      version_(std::move(version)),
      start_(absl::Now()),
      lookups_("lookups", LookupPool(lookup_threads)) {}

template <bool kPinned>
absl::Status CacheService::DoPin(const Identity& caller, const v1::PinRequest& request,
                                 v1::PinResponse* response) {
  absl::StatusOr<Digest> id = IdFromProto(request.restore_point_id());
  if (!id.ok()) return id.status();
  absl::StatusOr<std::string> tenant = caller.TenantOf(request.tenant());
  if (!tenant.ok()) return tenant.status();
  absl::StatusOr<RestorePoint> point = store_->SetPinned(*id, *tenant, kPinned);
  if (!point.ok()) return point.status();
  RestorePointToProto(*point, response->mutable_restore_point());
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* CacheService::Pin(Context* context, const Bytes* request,
                                            Bytes* response) {
  return RunCall("Pin", context, request, response, &CacheService::DoPin<true>);
}

grpc::ServerUnaryReactor* CacheService::Unpin(Context* context, const Bytes* request,
                                              Bytes* response) {
  return RunCall("Unpin", context, request, response, &CacheService::DoPin<false>);
}

grpc::ServerUnaryReactor* CacheService::Drop(Context* context, const Bytes* request,
                                             Bytes* response) {
  return RunCall("Drop", context, request, response, &CacheService::DoDrop);
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

grpc::ServerUnaryReactor* CacheService::Stats(Context* context, const Bytes* request,
                                              Bytes* response) {
  return RunCall("Stats", context, request, response, &CacheService::DoStats);
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
  FiguresToProto(store_->StatsOf(*tenant), response);
  response->mutable_tenant()->set_tenant(*tenant);
  return absl::OkStatus();
}

}  // namespace hearth
