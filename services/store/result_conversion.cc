#include "services/store/result_conversion.h"

#include "services/rpc/proto_conversion.h"

namespace hearth {

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
  out->mutable_last_token_ids()->Add(point.last_token_ids.begin(), point.last_token_ids.end());
}

}  // namespace hearth
