// The fetch plan and the slices of a ScriptedStore that has the objects of small_layout.h.
//
// Thread safety: pure functions.
#ifndef HEARTH_TESTS_SERVICES_INFERENCE_SCRIPTED_PLAN_H_
#define HEARTH_TESTS_SERVICES_INFERENCE_SCRIPTED_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "services/rpc/proto_conversion.h"
#include "tests/services/inference/scripted_store.h"
#include "tests/services/store/small_layout.h"

namespace hearth {

inline v1::FetchResponse ScriptedPlan(uint32_t boundary, uint32_t matched_tokens) {
  v1::FetchResponse message;
  v1::FetchPlan* plan = message.mutable_plan();
  plan->set_matched_tokens(matched_tokens);
  plan->set_usable_tokens(boundary);
  plan->set_slowest_tier(v1::TIER_HOST);
  v1::InferenceState* state = plan->mutable_state();
  state->set_token_count(boundary);
  state->set_next_position(boundary);
  state->set_attention_mask("causal");
  for (uint32_t id : CountingTokens(boundary)) state->add_token_ids(id);
  DigestToProto(SmallFingerprint().digest(), state->mutable_fingerprint());
  for (const auto& object : SmallObjects(boundary)) {
    v1::ObjectRef* ref = plan->add_objects();
    ToProto(object->id, ref);
    for (uint64_t digest : object->slice_digests) ref->add_slice_digests(digest);
  }
  return message;
}

// Sends each slice in one message, after `change` has changed it; at most `most` slices.
inline void SendScriptedSlices(uint32_t boundary, ScriptedStore::FetchStream* stream,
                               const std::function<void(v1::SliceData*)>& change = nullptr,
                               int most = INT32_MAX) {
  const auto objects = SmallObjects(boundary);
  for (size_t i = 0; i < objects.size(); ++i) {
    const size_t bytes = SmallLayout().SliceBytes(objects[i]->id.tokens);
    const std::byte* from = objects[i]->bytes.get();
    for (uint32_t layer : SmallLayout().LayersOf(objects[i]->id.group)) {
      if (most-- <= 0) return;
      v1::FetchResponse message;
      message.mutable_slice()->set_object(i);
      message.mutable_slice()->set_layer(layer);
      message.mutable_slice()->set_data(from, bytes);
      if (change) change(message.mutable_slice());
      stream->Write(message);
      from += bytes;
    }
  }
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_INFERENCE_SCRIPTED_PLAN_H_
