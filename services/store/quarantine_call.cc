#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "services/rpc/proto_conversion.h"
#include "services/serving/calls/late_answer.h"
#include "services/serving/logging.h"
#include "services/store/store_calls.h"
#include "services/store/store_conversion.h"

namespace hearth {
namespace {

absl::Status TakeOut(TieredStore* store, const Identity& caller,
                     const grpc::CallbackServerContext* context,
                     const v1::QuarantineRequest& request, v1::QuarantineResponse* response) {
  absl::StatusOr<PrefixQuery> query = QueryFromProto(request.prefix(), caller);
  if (!query.ok()) return query.status();
  query->stopped = [context] { return context->IsCancelled(); };
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

grpc::ServerUnaryReactor* StartQuarantine(const StoreCallParts& parts,
                                          grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) {
  const grpc::ByteBuffer bytes = TakeRequest(request);
  const auto begin = [&](const Identity& caller,
                         const std::shared_ptr<LateAnswer>& answer) -> absl::Status {
    if (!caller.sees_all()) {
      return absl::PermissionDeniedError("quarantine: for workers and administrators; drop it");
    }
    const auto run = [store = parts.store, caller, context, bytes, response, answer] {
      const auto take_out = [&](const v1::QuarantineRequest& asked, v1::QuarantineResponse* made) {
        return TakeOut(store, caller, context, asked, made);
      };
      ParseAndAnswer<v1::QuarantineRequest, v1::QuarantineResponse>(bytes, response, answer.get(),
                                                                    take_out);
    };
    return parts.lookups->SubmitRequest(caller.ShareName(), bytes.Length(), run);
  };
  return AnswerLater(parts.gate, parts.identities, "Quarantine", context, bytes.Length(), begin);
}

}  // namespace hearth
