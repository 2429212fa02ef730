#include "services/inference/plan_check.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/restore_rule.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {
namespace {

template <typename Ours, typename Theirs>
absl::Status Differs(const char* field, const Ours& ours, const Theirs& theirs) {
  return absl::FailedPreconditionError(
      absl::StrCat("plan: ", field, " is ", theirs, "; the request has ", ours));
}

}  // namespace

absl::Status CheckPlan(const PlanRequest& wanted, const PlannedState& state) {
  const PrefixRequest& prefix = *wanted.prefix;
  const uint32_t usable = state.usable_tokens;
  assert(usable > 0);
  const uint32_t most = wanted.max_tokens > 0 ? wanted.max_tokens
                                              : static_cast<uint32_t>(prefix.token_ids.size()) - 1;
  if (usable <= wanted.above_tokens || usable > most) {
    return Differs("usable_tokens", absl::StrCat("(", wanted.above_tokens, ", ", most, "]"),
                   usable);
  }
  if (usable > prefix.token_ids.size()) {
    return Differs("usable_tokens", prefix.token_ids.size(), usable);
  }
  if (state.token_count != usable) return Differs("token_count", usable, state.token_count);
  if (state.next_position != usable) return Differs("next_position", usable, state.next_position);
  if (state.attention_mask != kCausalMask) {
    return Differs("attention_mask", kCausalMask, state.attention_mask);
  }
  if (state.fingerprint != wanted.fingerprint->digest()) {
    return Differs("fingerprint", DigestHex(wanted.fingerprint->digest()),
                   state.fingerprint.has_value() ? DigestHex(*state.fingerprint) : "no digest");
  }
  if (state.token_ids.size() != usable) {
    return Differs("number of token_ids", usable, state.token_ids.size());
  }
  for (uint32_t i = 0; i < usable; ++i) {
    if (state.token_ids[i] != prefix.token_ids[i]) {
      return Differs(absl::StrCat("token_ids[", i, "]").c_str(), prefix.token_ids[i],
                     state.token_ids[i]);
    }
  }
  for (const Segment& segment : SegmentsTo(usable, wanted.layout->chunk_tokens)) {
    // Cuts at a segment's ends change nothing, so only those inside are compared.
    const auto ours = CutsInside(segment, prefix.cuts, wanted.layout->exactness);
    const auto theirs = CutsInside(segment, state.cuts, wanted.layout->exactness);
    if (ours != theirs) {
      return Differs(absl::StrCat("cuts inside the segment at ", segment.begin).c_str(),
                     absl::StrCat("{", absl::StrJoin(ours, ", "), "}"),
                     absl::StrCat("{", absl::StrJoin(theirs, ", "), "}"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPlan(const PlanRequest& wanted, const v1::FetchPlan& plan) {
  const v1::InferenceState& state = plan.state();
  const absl::StatusOr<Digest> digest = DigestFromBytes(state.fingerprint().digest());
  return CheckPlan(
      wanted,
      {plan.usable_tokens(), state.token_count(), state.next_position(), state.attention_mask(),
       digest.ok() ? std::make_optional(*digest) : std::nullopt, state.token_ids(), state.cuts()});
}

void NoteStored(absl::Span<const uint32_t> boundaries, Durability durable, std::string note,
                PublishOutcome* outcome) {
  outcome->boundaries.assign(boundaries.begin(), boundaries.end());
  for (const uint32_t boundary : boundaries) {
    outcome->published_tokens = std::max(outcome->published_tokens, boundary);
  }
  outcome->durable = durable;
  outcome->note = std::move(note);
}

void ReadAck(const v1::PublishAck& ack, PublishOutcome* outcome) {
  NoteStored(ack.boundaries(), FromProto(ack.durable()).value_or(Durability::kDefault),
             absl::StrJoin(ack.notes(), "; "), outcome);
}

}  // namespace hearth
