#include <memory>
#include <utility>

#include "services/serving/calls/late_answer.h"
#include "services/store/store_calls.h"
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

}  // namespace

grpc::ServerUnaryReactor* StartExplain(const StoreCallParts& parts, StreamLimit* calls,
                                       grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) {
  const grpc::ByteBuffer bytes = TakeRequest(request);
  const auto begin = [&](const Identity& caller, const std::shared_ptr<LateAnswer>& answer) {
    absl::StatusOr<std::shared_ptr<void>> place = calls->Enter(caller);
    if (!place.ok()) return place.status();
    answer->Hold(*std::move(place));
    const auto run = [store = parts.store, caller, context, bytes, response, answer] {
      const auto explain = [&](const v1::ExplainRequest& asked, v1::ExplainResponse* made) {
        return Explain(store, caller, context, asked, made);
      };
      ParseAndAnswer<v1::ExplainRequest, v1::ExplainResponse>(bytes, response, answer.get(),
                                                              explain);
    };
    return parts.lookups->SubmitRequest(caller.ShareName(), bytes.Length(), run);
  };
  return AnswerLater(parts.gate, parts.identities, "Explain", context, bytes.Length(), begin);
}

}  // namespace hearth
