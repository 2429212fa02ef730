// Converts the store's values to protobuf messages, and back.
//
// Messages are validated: kInvalidArgument has the field and the limit. Thread safety: pure
// functions.
#ifndef HEARTH_SERVICES_STORE_STORE_CONVERSION_H_
#define HEARTH_SERVICES_STORE_STORE_CONVERSION_H_

#include <string>

#include "absl/status/statusor.h"
#include "cache_store/store/tiered_store.h"
#include "proto/cache_store.pb.h"
#include "services/serving/access/identity.h"

namespace hearth {

// Parses a restore point's id. kInvalidArgument if `bytes` has any other length.
absl::StatusOr<Digest> IdFromProto(const std::string& bytes);

absl::StatusOr<PrefixQuery> QueryFromProto(const v1::Prefix& proto, const Identity& caller);
absl::StatusOr<PublishSpec> SpecFromProto(const v1::PublishBegin& proto, const Identity& caller);

// Gives the fingerprint's readable fields to the store, if the request has them.
void ObserveFields(StoreReader* store, const v1::Prefix& prefix, const std::string& tenant);

void ResultToProto(const PublishResult& result, v1::PublishAck* out);
void RestorePointToProto(const RestorePoint& point, v1::RestorePointInfo* out);
void PlanToProto(const LookupPlan& plan, v1::FetchPlan* out);
void ReportToProto(const ExplainReport& report, v1::ExplainResponse* out);
void StatsToProto(const StoreStats& stats, v1::StatsResponse* out);
void FiguresToProto(const TenantFigures& figures, v1::StatsResponse* out);
void EventToProto(const StoreEvent& event, v1::WatchEvent* out);
void ChunksToProto(const ChunkRun& run, v1::ChunkRun* out);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_STORE_CONVERSION_H_
