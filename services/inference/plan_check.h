// A worker's checks of a store's answers, before it believes them.
//
// A plan has six parts to compare with the request and the running model: ObjectBuilder checks the
// KV objects, the other five are checked here. Thread safety: pure functions.
#ifndef HEARTH_SERVICES_INFERENCE_PLAN_CHECK_H_
#define HEARTH_SERVICES_INFERENCE_PLAN_CHECK_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/cache_store.pb.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

// The question that a plan answers. `max_tokens` 0: one token is left to compute.
struct PlanRequest {
  const PrefixRequest* prefix;
  uint32_t above_tokens;
  uint32_t max_tokens;
  const Fingerprint* fingerprint;
  const KvLayout* layout;
};

// The state that a plan promises, borrowed from its maker.
struct PlannedState {
  uint32_t usable_tokens, token_count, next_position;
  absl::string_view attention_mask;
  std::optional<Digest> fingerprint;
  absl::Span<const uint32_t> token_ids, cuts;
};
inline constexpr char kCausalMask[] = "causal";

// kFailedPrecondition names the first field that differs, and both values.
// REQUIRES: usable_tokens > 0.
absl::Status CheckPlan(const PlanRequest& wanted, const PlannedState& state);
absl::Status CheckPlan(const PlanRequest& wanted, const v1::FetchPlan& plan);

// Sets everything of `outcome` but bytes_sent.
void NoteStored(absl::Span<const uint32_t> boundaries, Durability durable, std::string note,
                PublishOutcome* outcome);
void ReadAck(const v1::PublishAck& ack, PublishOutcome* outcome);

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_PLAN_CHECK_H_
