#include "services/explain_call.h"

#include <memory>
#include <utility>

#include "services/late_answer.h"
#include "services/store_conversion.h"

namespace hearth {
namespace {

absl::Status Explain(TieredStore* store, const Identity& caller,
                     const grpc::CallbackServerContext* context, const v1::ExplainRequest& request,
                     v1::ExplainResponse* response) {
  // Nobody waits for it any more: its turn came late.
  if (context->IsCancelled()) return absl::CancelledError("the caller went away");
  absl::StatusOr<PrefixQuery> query = QueryFromProto(request.prefix(), caller);
  if (!query.ok()) return query.status();
  query->stopped = [context] { return context->IsCancelled(); };
  ObserveFields(store, request.prefix(), query->tenant);
  const absl::StatusOr<ExplainReport> report = store->Explain(*query);
  if (!report.ok()) return report.status();
  ReportToProto(*report, response);
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* StartExplain(TieredStore* store, CallGate* gate, Identities* identities,
                                       FairPool* lookups, StreamLimit* calls,
                                       grpc::CallbackServerContext* context,
                                       const v1::ExplainRequest& request,
                                       v1::ExplainResponse* response) {
  const auto begin = [&](const Identity& caller, const std::shared_ptr<LateAnswer>& answer) {
    absl::StatusOr<std::shared_ptr<void>> place = calls->Enter(caller);
    if (!place.ok()) return place.status();
    answer->Hold(*std::move(place));
    return lookups->Submit(caller.ShareName(), request.SpaceUsedLong(),
                           [store, caller, context, &request, response, answer] {
                             answer->Finish(Explain(store, caller, context, request, response));
                           });
  };
  return AnswerLater(gate, identities, "Explain", context, request.ByteSizeLong(), begin);
}

}  // namespace hearth
