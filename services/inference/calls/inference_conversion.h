// Converts generation requests and answers between protobuf messages and the engine's values.
//
// Messages are validated: kInvalidArgument has the field and the limit. Thread safety: pure
// functions.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_INFERENCE_CONVERSION_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_INFERENCE_CONVERSION_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/generator.h"
#include "services/serving/calls/admission.h"
#include "worker/engine/engine.h"
#include "worker/text/prompt.h"

namespace hearth {

absl::StatusOr<PromptSource> SourceFromProto(const v1::PromptInput& proto);
// `open`: the values for requests that leave sampling to the server.
absl::StatusOr<SamplingParams> SamplingFromProto(const v1::SamplingParams& proto,
                                                 const SamplingParams& open);
absl::StatusOr<BeamOptions> SearchFromProto(const v1::GenerateRequest& proto);
absl::StatusOr<CacheMode> FromProto(v1::CacheMode mode);
GrammarSpec GrammarFromProto(const v1::Grammar& proto);

// Returns "none", "miss", "load", "compute" or "abandoned": v1::Load.decision.
const char* LoadDecisionName(LoadDecision decision);
void StartedToProto(const StartedInfo& info, v1::Started* out);
// Returns "loading 28.3 MB of it is expected to take 12 ms, computing 4911 ms"; empty without
// estimates.
std::string LoadSentence(const LoadReport& load);
void NoteStart(const StartedInfo& info, CallNote* note);
// Adds the times of a computation that has just ended. `call_ms`: time since the call's start.
void NoteFinish(const FinishedInfo& info, double call_ms, CallTimes* times);
// `is_first`: `prompt` begins the prompt, and its first token has no log probability.
void PromptToProto(absl::Span<const SampledToken> prompt, bool is_first, v1::PromptTokens* out);
void TokensToProto(const TokenDelta& delta, v1::GeneratedToken* out);
void FinishedToProto(const FinishedInfo& info, uint32_t prompt_tokens, v1::Finished* out);
void OutcomeToProto(const PublishOutcome& outcome, v1::Published* out);

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_INFERENCE_CONVERSION_H_
