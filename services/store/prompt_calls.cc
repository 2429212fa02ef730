// The unary calls that compute a key for each chunk and cut of a prompt: Explain and Quarantine.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "services/rpc/proto_conversion.h"
#include "services/serving/calls/late_answer.h"
#include "services/serving/logging.h"
#include "services/store/cache_service.h"
#include "services/store/store_conversion.h"

namespace hearth {
namespace {

absl::Status Explain(TieredStore* store, const Identity& caller,
                     const grpc::CallbackServerContext* context, const v1::ExplainRequest& request,
                     v1::ExplainResponse* response) {
  absl::StatusOr<PrefixQuery> query = QueryFromProto(request.prefix(), caller);
  if (!query.ok()) return query.status();
  query->stopped = [context] { return context->IsCancelled(); };
  ObserveFields(store, request.prefix(), query->tenant);
  const absl::StatusOr<ExplainReport> report = store->Explain(*query);
  if (!report.ok()) return report.status();
  ReportToProto(*report, response);
  return absl::OkStatus();
}

absl::Status TakeOut(TieredStore* store, const Identity& caller,
                     const grpc::CallbackServerContext* context,
                     const v1::QuarantineRequest& request, v1::QuarantineResponse* response) {
  absl::StatusOr<PrefixQuery> query = QueryFromProto(request.prefix(), caller);
  if (!query.ok()) return query.status();
  query->stopped = [context] { return context->IsCancelled(); };
  ObserveFields(store, request.prefix(), query->tenant);
  std::vector<ObjectId> objects;
  for (const v1::ObjectRef& ref : request.objects()) {
    const absl::StatusOr<ObjectId> id = ObjectIdFromProto(ref);
    if (!id.ok()) return id.status();
    objects.push_back(*id);
  }
  const std::string auditor = caller.name.empty() ? context->peer() : caller.name;
  const absl::StatusOr<QuarantineResult> result = QuarantineAndLog(store, *query, objects, auditor);
  if (!result.ok()) return result.status();
  response->set_objects(result->objects);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<QuarantineResult> QuarantineAndLog(TieredStore* store, const PrefixQuery& query,
                                                  const std::vector<ObjectId>& objects,
                                                  const std::string& auditor) {
  absl::StatusOr<QuarantineResult> result = store->Quarantine(query, objects);
  if (!result.ok()) return result.status();
  for (std::string& publisher : result->publishers) {
    if (publisher.empty()) publisher = "somebody before this start";
  }
  Log(LogLevel::kWarning, "quarantined: an audit found other bytes than its worker computes",
      {{"tenant", query.tenant},
       {"objects", result->objects},
       {"tokens", query.token_ids.size()},
       {"publisher", absl::StrJoin(result->publishers, ", ")},
       {"auditor", auditor}});
  if (!result->on_disk.ok()) {
    Log(LogLevel::kError, "quarantined, but for a crash: the disk would not let go of it",
        {{"tenant", query.tenant}, {"reason", result->on_disk.message()}});
    return result->on_disk;
  }
  return result;
}

grpc::ServerUnaryReactor* StartExplain(CacheService* service, grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) {
  const auto admit = [&](const Identity& caller, const grpc::ByteBuffer& bytes, LateAnswer* answer,
                         FairPool::Job job) {
    const absl::Status placed = answer->call()->TakePlace(kExplainLimit, caller);
    if (!placed.ok()) return placed;
    return service->lookups()->SubmitRequest(caller.ShareName(), bytes.Length(), std::move(job));
  };
  const auto work = [store = service->store(), context](const Identity& caller,
                                                        const v1::ExplainRequest& asked,
                                                        v1::ExplainResponse* made) {
    return Explain(store, caller, context, asked, made);
  };
  return AnswerOnPool<v1::ExplainRequest, v1::ExplainResponse>(
      service->admission(), "Explain", context, request, response, admit, work);
}

grpc::ServerUnaryReactor* StartQuarantine(CacheService* service,
                                          grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) {
  const auto admit = [&](const Identity& caller, const grpc::ByteBuffer& bytes, LateAnswer*,
                         FairPool::Job job) -> absl::Status {
    if (!caller.sees_all()) {
      return absl::PermissionDeniedError("quarantine: for workers and administrators; drop it");
    }
    return service->lookups()->SubmitRequest(caller.ShareName(), bytes.Length(), std::move(job));
  };
  const auto work = [store = service->store(), context](const Identity& caller,
                                                        const v1::QuarantineRequest& asked,
                                                        v1::QuarantineResponse* made) {
    return TakeOut(store, caller, context, asked, made);
  };
  return AnswerOnPool<v1::QuarantineRequest, v1::QuarantineResponse>(
      service->admission(), "Quarantine", context, request, response, admit, work);
}

}  // namespace hearth
