#include "services/store/cache_service.h"

#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/slice_wire.h"
#include "services/serving/calls/late_answer.h"
#include "services/serving/logging.h"
#include "services/store/store_conversion.h"

namespace hearth {
namespace {

// Makes the query of an Explain or Quarantine call. The query computes a key for each chunk and cut
// of a prompt, and ends early if the caller cancels.
absl::StatusOr<PrefixQuery> QueryOf(StoreReader* store, const Identity& caller,
                                    const grpc::CallbackServerContext* context,
                                    const v1::Prefix& prefix) {
  absl::StatusOr<PrefixQuery> query = QueryFromProto(prefix, caller);
  if (!query.ok()) return query;
  query->stopped = [context] { return context->IsCancelled(); };
  ObserveFields(store, prefix, query->tenant);
  return query;
}

absl::Status ExplainPrompt(StoreReader* store, const Identity& caller,
                           const grpc::CallbackServerContext* context,
                           const v1::ExplainRequest& request, v1::ExplainResponse* response) {
  const absl::StatusOr<PrefixQuery> query = QueryOf(store, caller, context, request.prefix());
  if (!query.ok()) return query.status();
  const absl::StatusOr<ExplainReport> report = store->Explain(*query);
  if (!report.ok()) return report.status();
  ReportToProto(*report, response);
  return absl::OkStatus();
}

// Removes objects that a worker's audit found wrong, and logs who published them.
absl::Status QuarantineObjects(TieredStore* store, const Identity& caller,
                               const grpc::CallbackServerContext* context,
                               const v1::QuarantineRequest& request,
                               v1::QuarantineResponse* response) {
  const absl::StatusOr<PrefixQuery> query = QueryOf(store, caller, context, request.prefix());
  if (!query.ok()) return query.status();
  std::vector<ObjectId> objects;
  for (const v1::ObjectRef& ref : request.objects()) {
    const absl::StatusOr<ObjectId> id = ObjectIdFromProto(ref);
    if (!id.ok()) return id.status();
    objects.push_back(*id);
  }
  absl::StatusOr<QuarantineResult> result = store->Quarantine(*query, objects);
  if (!result.ok()) return result.status();
  for (std::string& publisher : result->publishers) {
    if (publisher.empty()) publisher = "unknown (published before this start)";
  }
  Log(LogLevel::kWarning,
      "quarantined: an audit found bytes that differ from what the worker computes",
      {{"tenant", query->tenant},
       {"objects", result->objects},
       {"tokens", query->token_ids.size()},
       {"publisher", absl::StrJoin(result->publishers, ", ")},
       {"auditor", caller.name.empty() ? context->peer() : caller.name}});
  if (!result->on_disk.ok()) {
    Log(LogLevel::kError,
        "quarantined in memory, but deleting from disk failed; the data may be served again after "
        "a restart",
        {{"tenant", query->tenant}, {"reason", result->on_disk.message()}});
    return result->on_disk;
  }
  response->set_objects(result->objects);
  return absl::OkStatus();
}

}  // namespace

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

grpc::ServerUnaryReactor* CacheService::Explain(Context* context, const Bytes* request,
                                                Bytes* response) {
  const auto admit = [this](const Identity& caller, const Bytes& bytes, LateAnswer* answer,
                            FairPool::Job job) {
    const absl::Status placed = answer->call()->TakePlace(kExplainLimit, caller);
    if (!placed.ok()) return placed;
    return lookups_.SubmitRequest(caller.ShareName(), bytes.Length(), std::move(job));
  };
  const auto work = [store = store_, context](const Identity& caller,
                                              const v1::ExplainRequest& asked,
                                              v1::ExplainResponse* made) {
    return ExplainPrompt(store, caller, context, asked, made);
  };
  return AnswerOnPool<v1::ExplainRequest, v1::ExplainResponse>(admission_, "Explain", context,
                                                               request, response, admit, work);
}

grpc::ServerUnaryReactor* CacheService::Quarantine(Context* context, const Bytes* request,
                                                   Bytes* response) {
  const auto admit = [this](const Identity& caller, const Bytes& bytes, LateAnswer*,
                            FairPool::Job job) -> absl::Status {
    if (!caller.sees_all()) {
      return absl::PermissionDeniedError(
          "quarantine: only workers and administrators may call it; a tenant can use drop");
    }
    return lookups_.SubmitRequest(caller.ShareName(), bytes.Length(), std::move(job));
  };
  const auto work = [store = store_, context](const Identity& caller,
                                              const v1::QuarantineRequest& asked,
                                              v1::QuarantineResponse* made) {
    return QuarantineObjects(store, caller, context, asked, made);
  };
  return AnswerOnPool<v1::QuarantineRequest, v1::QuarantineResponse>(
      admission_, "Quarantine", context, request, response, admit, work);
}

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

grpc::ServerUnaryReactor* CacheService::Report(Context* context, const Bytes* request,
                                               Bytes* response) {
  const auto admit = [this](const Identity& caller, const Bytes& bytes, LateAnswer*,
                            FairPool::Job job) -> absl::Status {
    if (absl::Status small = CheckSmall<v1::ReportRequest>(bytes); !small.ok()) return small;
    return short_calls_.Submit(caller.ShareName(), bytes.Length(), std::move(job));
  };
  const auto work = [this, context](const Identity& caller, const v1::ReportRequest& report,
                                    v1::ReportResponse* made) {
    made->set_shows_prompt_text(fleet_.shows_words());
    return fleet_.Take(report, caller, context->peer());
  };
  return AnswerOnPool<v1::ReportRequest, v1::ReportResponse>(admission_, "Report", context, request,
                                                             response, admit, work);
}

}  // namespace hearth
