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

absl::StatusOr<PrefixQuery> QueryOf(StoreReader* store, const Identity& caller,
                                    const grpc::CallbackServerContext* context,
                                    const v1::Prefix& prefix) {
  absl::StatusOr<PrefixQuery> query = QueryFromProto(prefix, caller);
  if (!query.ok()) return query;
  query->stopped = [context] { return context->IsCancelled(); };
  ObserveFields(store, prefix, query->tenant);
  return query;
}

absl::Status Explain(StoreReader* store, const Identity& caller,
                     const grpc::CallbackServerContext* context, const v1::ExplainRequest& request,
                     v1::ExplainResponse* response) {
  const absl::StatusOr<PrefixQuery> query = QueryOf(store, caller, context, request.prefix());
  if (!query.ok()) return query.status();
  const absl::StatusOr<ExplainReport> report = store->Explain(*query);
  if (!report.ok()) return report.status();
  ReportToProto(*report, response);
  return absl::OkStatus();
}

// An audit found wrong objects: removes them, and logs who published them.
absl::Status TakeOut(StoreAdmin* store, const PrefixQuery& query,
                     const std::vector<ObjectId>& objects, const std::string& auditor,
                     v1::QuarantineResponse* response) {
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
    Log(LogLevel::kError,
        "quarantined in memory, but deleting from disk failed; the data may be served again after "
        "a restart",
        {{"tenant", query.tenant}, {"reason", result->on_disk.message()}});
    return result->on_disk;
  }
  response->set_objects(result->objects);
  return absl::OkStatus();
}

absl::Status Quarantine(TieredStore* store, const Identity& caller,
                        const grpc::CallbackServerContext* context,
                        const v1::QuarantineRequest& request, v1::QuarantineResponse* response) {
  const absl::StatusOr<PrefixQuery> query = QueryOf(store, caller, context, request.prefix());
  if (!query.ok()) return query.status();
  std::vector<ObjectId> objects;
  for (const v1::ObjectRef& ref : request.objects()) {
    const absl::StatusOr<ObjectId> id = ObjectIdFromProto(ref);
    if (!id.ok()) return id.status();
    objects.push_back(*id);
  }
  const std::string auditor = caller.name.empty() ? context->peer() : caller.name;
  return TakeOut(store, *query, objects, auditor, response);
}

}  // namespace

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
    return Quarantine(store, caller, context, asked, made);
  };
  return AnswerOnPool<v1::QuarantineRequest, v1::QuarantineResponse>(
      service->admission(), "Quarantine", context, request, response, admit, work);
}

}  // namespace hearth
