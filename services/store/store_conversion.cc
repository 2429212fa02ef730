#include "services/store/store_conversion.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/restore_rule.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {
namespace {

// Maximum number of boundaries in a request: one for each chunk of the longest prompt, with the
// smallest chunk size. Each boundary becomes a restore point.
constexpr int kMaxBoundaries = kMaxPromptTokens / kMinChunkTokens;

absl::Status CheckTokens(const v1::Prefix& proto) {
  const size_t tokens = proto.token_ids_size();
  if (tokens == 0) return absl::InvalidArgumentError("prefix.token_ids: must not be empty");
  if (tokens > kMaxPromptTokens) {
    return absl::InvalidArgumentError(absl::StrCat("prefix.token_ids: must have at most ",
                                                   kMaxPromptTokens, " tokens; got ", tokens));
  }
  return ValidateCuts(proto.cuts(), tokens);
}

}  // namespace

absl::StatusOr<Digest> IdFromProto(const std::string& bytes) {
  if (bytes.size() != Digest{}.size()) {
    return absl::InvalidArgumentError(absl::StrCat("restore_point_id: must have ", Digest{}.size(),
                                                   " bytes; got ", bytes.size()));
  }
  return DigestFromBytes(bytes);
}

absl::StatusOr<PrefixQuery> QueryFromProto(const v1::Prefix& proto, const Identity& caller) {
  if (absl::Status status = CheckTokens(proto); !status.ok()) return status;
  absl::StatusOr<Digest> fingerprint = DigestFromProto(proto.fingerprint());
  if (!fingerprint.ok()) return fingerprint.status();
  absl::StatusOr<std::string> tenant = caller.TenantOf(proto.tenant());
  if (!tenant.ok()) return tenant.status();
  PrefixQuery query;
  query.fingerprint = *fingerprint;
  query.tenant = *std::move(tenant);
  query.public_tenant = caller.public_tenant;
  query.token_ids.assign(proto.token_ids().begin(), proto.token_ids().end());
  query.cuts.assign(proto.cuts().begin(), proto.cuts().end());
  return query;
}

absl::StatusOr<PublishSpec> SpecFromProto(const v1::PublishBegin& proto, const Identity& caller) {
  if (absl::Status status = CheckTokens(proto.prefix()); !status.ok()) return status;
  if (proto.boundaries_size() > kMaxBoundaries) {
    return absl::InvalidArgumentError(
        absl::StrCat("boundaries: the number of boundaries must be at most ", kMaxBoundaries,
                     "; got ", proto.boundaries_size()));
  }
  absl::StatusOr<Fingerprint> fingerprint = FromProto(proto.prefix().fingerprint());
  if (!fingerprint.ok()) return fingerprint.status();
  absl::StatusOr<std::string> tenant = caller.TenantOf(proto.prefix().tenant());
  if (!tenant.ok()) return tenant.status();
  absl::StatusOr<Durability> durability = FromProto(proto.durability());
  if (!durability.ok()) return durability.status();
  PublishSpec spec;
  spec.fingerprint = *std::move(fingerprint);
  spec.tenant = *std::move(tenant);
  spec.durability = *durability;
  spec.ttl = absl::Seconds(proto.ttl_s());
  spec.hint = HintFromProto(proto);
  spec.token_ids.assign(proto.prefix().token_ids().begin(), proto.prefix().token_ids().end());
  spec.cuts.assign(proto.prefix().cuts().begin(), proto.prefix().cuts().end());
  spec.boundaries.assign(proto.boundaries().begin(), proto.boundaries().end());
  spec.objects.reserve(proto.objects_size());
  for (const v1::ObjectRef& object : proto.objects()) {
    absl::StatusOr<ObjectId> id = ObjectIdFromProto(object);
    if (!id.ok()) return id.status();
    spec.objects.push_back(
        {*id, {object.slice_digests().begin(), object.slice_digests().end()}, object.absent()});
  }
  return spec;
}

void ObserveFields(StoreReader* store, const v1::Prefix& prefix, const std::string& tenant) {
  if (prefix.fingerprint().fields_size() == 0) return;
  absl::StatusOr<Fingerprint> fingerprint = FromProto(prefix.fingerprint());
  if (fingerprint.ok()) store->Observe(*fingerprint, tenant);
}

void PlanToProto(const LookupPlan& plan, v1::FetchPlan* out) {
  out->set_matched_tokens(plan.matched_tokens);
  out->set_usable_tokens(plan.usable_tokens);
  out->set_total_bytes(plan.total_bytes);
  out->set_slowest_tier(ToProto(plan.slowest_tier));
  out->set_miss_reason(plan.miss_reason);
  out->set_from_public(plan.from_public);
  if (plan.usable_tokens == 0) return;
  v1::InferenceState* state = out->mutable_state();
  state->set_token_count(plan.usable_tokens);
  state->set_next_position(plan.usable_tokens);
  state->set_attention_mask("causal");
  state->mutable_token_ids()->Add(plan.token_ids.begin(), plan.token_ids.end());
  state->mutable_cuts()->Add(plan.cuts.begin(), plan.cuts.end());
  ToProto(plan.fingerprint, state->mutable_fingerprint());
  for (const PlannedObject& object : plan.objects) {
    v1::ObjectRef* ref = out->add_objects();
    ToProto(object.id, ref);
    ref->mutable_slice_digests()->Add(object.slice_digests.begin(), object.slice_digests.end());
    ref->set_tier(ToProto(object.tier));
  }
}

void ReportToProto(const ExplainReport& report, v1::ExplainResponse* out) {
  out->set_matched_tokens(report.matched_tokens);
  out->set_usable_tokens(report.usable_tokens);
  out->set_summary(report.summary);
  out->set_omitted_boundaries(report.omitted_boundaries);
  for (const BoundaryReport& boundary : report.boundaries) {
    v1::BoundaryInfo* info = out->add_boundaries();
    info->set_boundary(boundary.boundary);
    info->set_usable(boundary.usable);
    info->set_slowest_tier(ToProto(boundary.slowest_tier));
    info->set_bytes(boundary.bytes);
    info->set_age_s(absl::ToDoubleSeconds(boundary.age));
    info->set_pinned(boundary.pinned);
    info->set_from_public(boundary.from_public);
    info->set_reason(boundary.reason);
    info->set_reason_code(MissName(boundary.miss));
    if (boundary.removed.has_value()) {
      info->set_removed_by(RemovalName(*boundary.removed));
      info->set_removed_s(absl::ToDoubleSeconds(boundary.removed_ago));
    }
    if (boundary.restore_point_id.has_value()) {
      info->set_restore_point_id(std::string(DigestBytes(*boundary.restore_point_id)));
    }
  }
  for (const OtherFingerprint& other : report.other_fingerprints) {
    v1::FingerprintDifference* difference = out->add_other_fingerprints();
    difference->set_field(other.difference.field);
    difference->set_requested(other.difference.ours);
    difference->set_stored(other.difference.theirs);
    difference->set_matched_tokens(other.matched_tokens);
  }
}

void StatsToProto(const StoreStats& stats, v1::StatsResponse* out) {
  out->set_incarnation(stats.incarnation);
  out->set_restore_points(stats.restore_points);
  out->set_objects(stats.objects);
  out->set_pinned_bytes(stats.pinned_bytes);
  out->set_point_bytes(stats.point_bytes);
  for (const TierUsage& usage : stats.tiers) {
    v1::TierStats* tier = out->add_tiers();
    tier->set_tier(ToProto(usage.tier));
    tier->set_bytes(usage.bytes);
    tier->set_capacity_bytes(usage.capacity_bytes);
    tier->set_objects(usage.objects);
    tier->set_evicted_restore_points(usage.evicted_restore_points);
    tier->set_hit_tokens(usage.hit_tokens);
    tier->set_read_bytes(usage.read_bytes);
    tier->set_written_bytes(usage.written_bytes);
    tier->set_unread_bytes(usage.unread_bytes);
  }
  for (const auto& [name, value] : stats.counters) (*out->mutable_counters())[name] = value;
  for (const auto& [reason, count] : stats.removed) (*out->mutable_removed())[reason] = count;
}

void FiguresToProto(const TenantFigures& figures, v1::StatsResponse* out) {
  out->set_incarnation(figures.incarnation);
  out->set_restore_points(figures.usage.restore_points);
  out->set_objects(figures.usage.objects);
  out->set_pinned_bytes(figures.usage.pinned_bytes);
  v1::TenantStats* tenant = out->mutable_tenant();
  tenant->set_bytes(figures.usage.bytes);
  tenant->set_max_bytes(figures.quota.max_bytes);
  tenant->set_max_objects(figures.quota.max_objects);
  tenant->set_max_pinned_bytes(figures.quota.max_pinned_bytes);
  tenant->set_floor_bytes(figures.quota.floor_bytes);
  tenant->set_default_ttl_s(figures.quota.default_ttl_s);
  tenant->set_max_ttl_s(figures.quota.max_ttl_s);
}

void EventToProto(const StoreEvent& event, v1::WatchEvent* out) {
  static_assert(static_cast<int>(StoreEvent::Kind::kLost) + 1 == v1::WatchEvent::LOST);
  static_assert(static_cast<int>(StoreEvent::Kind::kDurable) + 1 == v1::WatchEvent::DURABLE);
  out->set_kind(static_cast<v1::WatchEvent::Kind>(static_cast<int>(event.kind) + 1));
  out->set_sequence(event.sequence);
  if (event.removed.has_value()) out->set_reason(RemovalName(*event.removed));
  if (event.kind == StoreEvent::Kind::kLost) return;
  RestorePointToProto(event.restore_point, out->mutable_restore_point());
}

void ChunksToProto(const ChunkRun& run, v1::ChunkRun* out) {
  out->set_chunk_tokens(run.chunk_tokens);
  out->set_first_chunk(run.first_chunk);
  out->set_parent_id(run.parent_id);
  out->mutable_chunk_ids()->Add(run.ids.begin(), run.ids.end());
  out->mutable_token_ids()->Add(run.token_ids.begin(), run.token_ids.end());
}

void ResultToProto(const PublishResult& result, v1::PublishAck* out) {
  out->set_durable(ToProto(result.durable));
  out->mutable_boundaries()->Add(result.boundaries.begin(), result.boundaries.end());
  out->set_bytes_received(result.bytes_received);
  for (const std::string& note : result.notes) out->add_notes(note);
}

void RestorePointToProto(const RestorePoint& point, v1::RestorePointInfo* out) {
  out->set_restore_point_id(std::string(DigestBytes(point.id)));
  out->set_fingerprint_digest(std::string(DigestBytes(point.fingerprint)));
  out->set_tokens(point.tokens);
  out->set_bytes(point.bytes);
  out->set_tier(ToProto(point.tier));
  out->set_durable(point.durable);
  out->set_pinned(point.pinned);
  out->set_age_s(absl::ToDoubleSeconds(point.age));
  if (point.expires_in != absl::InfiniteDuration()) {
    out->set_expires_in_s(absl::ToDoubleSeconds(point.expires_in));
  }
  out->set_hits(point.hits);
  out->set_priority(point.priority);
  out->set_kept_s(absl::ToDoubleSeconds(point.kept));
  out->set_tenant(point.tenant);
  out->mutable_last_token_ids()->Add(point.last_token_ids.begin(), point.last_token_ids.end());
}

}  // namespace hearth
