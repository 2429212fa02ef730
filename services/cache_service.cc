#include "services/cache_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/proto_conversion.h"
#include "services/publish_stream.h"
#include "services/slice_stream.h"
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

absl::StatusOr<Digest> IdFromProto(const std::string& bytes) {
  if (bytes.size() != Digest{}.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("restore_point_id: ", bytes.size(), " bytes; it has ", Digest{}.size()));
  }
  return DigestFromBytes(bytes);
}

}  // namespace

CacheService::CacheService(TieredStore* store, CallGate* gate, std::string version)
    : store_(store), gate_(gate), version_(std::move(version)), start_(absl::Now()) {}

void CacheService::ObserveFields(const v1::Prefix& prefix) {
  if (prefix.fingerprint().fields_size() == 0) return;
  absl::StatusOr<Fingerprint> fingerprint = FromProto(prefix.fingerprint());
  absl::StatusOr<std::string> tenant = TenantOf(prefix.tenant());
  if (fingerprint.ok() && tenant.ok()) store_->Observe(*fingerprint, *tenant);
}

grpc::Status CacheService::Fetch(grpc::ServerContext* context, const v1::FetchRequest* request,
                                 grpc::ServerWriter<v1::FetchResponse>* writer) {
  return RunCall(gate_, "Fetch", context, [&] { return DoFetch(*request, writer); });
}

absl::Status CacheService::DoFetch(const v1::FetchRequest& request,
                                   grpc::ServerWriter<v1::FetchResponse>* writer) {
  absl::StatusOr<std::unique_ptr<FetchSession>> session;
  if (request.what_case() == v1::FetchRequest::kRestorePointId) {
    absl::StatusOr<Digest> id = IdFromProto(request.restore_point_id());
    if (!id.ok()) return id.status();
    absl::StatusOr<std::string> tenant = TenantOf("");
    if (!tenant.ok()) return tenant.status();
    session = store_->FetchById(*id, *tenant);
  } else {
    absl::StatusOr<PrefixQuery> query = QueryFromProto(request.prefix());
    if (!query.ok()) return query.status();
    ObserveFields(request.prefix());
    session = store_->Fetch(*query, request.above_tokens(), request.max_tokens());
  }
  if (!session.ok()) return session.status();

  const LookupPlan& plan = (*session)->plan();
  v1::FetchResponse message;
  PlanToProto(plan, message.mutable_plan());
  // A failed write means that the caller is gone: nobody reads the status then.
  if (!writer->Write(message)) return absl::CancelledError("the caller went away");
  if (plan.usable_tokens == 0) return absl::OkStatus();

  v1::SliceData* slice = message.mutable_slice();
  for (const SliceRef& ref : SliceOrder(plan)) {
    absl::StatusOr<SliceView> view = (*session)->ReadSlice(ref.object, ref.layer);
    if (!view.ok()) return view.status();
    slice->set_object(ref.object);
    slice->set_layer(ref.layer);
    const bool sent =
        ForEachPiece(view->bytes, [&](uint64_t offset, absl::Span<const std::byte> piece) {
          slice->set_offset(offset);
          slice->set_data(piece.data(), piece.size());
          return writer->Write(message);
        });
    if (!sent) return absl::CancelledError("the caller went away");
  }
  return absl::OkStatus();
}

grpc::Status CacheService::Publish(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::PublishResponse, v1::PublishRequest>* stream) {
  return RunCall(gate_, "Publish", context, [&]() -> absl::Status {
    absl::Status status = absl::ResourceExhaustedError(absl::StrCat(
        "publish: ", kMaxPublishStreams, " streams are open, which is the limit; try again later"));
    if (publish_streams_.fetch_add(1) < kMaxPublishStreams) {
      status = ServePublish(store_, stream);
    }
    publish_streams_.fetch_sub(1);
    return status;
  });
}

grpc::Status CacheService::Explain(grpc::ServerContext* context, const v1::ExplainRequest* request,
                                   v1::ExplainResponse* response) {
  return RunCall(gate_, "Explain", context, [&] { return DoExplain(*request, response); });
}

absl::Status CacheService::DoExplain(const v1::ExplainRequest& request,
                                     v1::ExplainResponse* response) {
  absl::StatusOr<PrefixQuery> query = QueryFromProto(request.prefix());
  if (!query.ok()) return query.status();
  ObserveFields(request.prefix());
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
