#include "services/inference/calls/inference_conversion.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {
const char* LoadDecisionName(LoadDecision decision) {
  constexpr const char* kNames[] = {"none", "miss", "load", "compute", "abandoned"};
  static_assert(std::size(kNames) == static_cast<size_t>(LoadDecision::kAbandoned) + 1);
  return kNames[static_cast<size_t>(decision)];
}

namespace {

const char* LoadSourceName(LoadSource source) {
  constexpr const char* kNames[] = {"wire", "wire-disk", "shared-memory", "device"};
  static_assert(std::size(kNames) == static_cast<size_t>(LoadSource::kCount));
  return kNames[static_cast<size_t>(source)];
}

// Adds the log probabilities of the alternatives to `token` to `out`.
template <typename Proto>
void TopToProto(const SampledToken& token, Proto* out) {
  for (const TokenLogprob& alternative : token.top) {
    v1::TokenLogprob* top = out->add_top();
    top->set_id(alternative.id);
    top->set_logprob(alternative.logprob);
  }
}

ChatInput ChatFromProto(const v1::Chat& proto) {
  ChatInput chat;
  chat.omit_generation_prompt = proto.omit_generation_prompt();
  chat.strict = proto.strict();
  chat.continue_final_message = proto.continue_final_message();
  chat.tools.assign(proto.tools().begin(), proto.tools().end());
  chat.answer_prefix = proto.answer_prefix();
  chat.messages.reserve(proto.messages_size());
  for (const v1::ChatMessage& message : proto.messages()) {
    ChatMessage converted;
    converted.role = message.role();
    // An id above INT32_MAX becomes INT32_MAX, which no vocabulary has.
    for (const uint32_t id : message.token_ids())
      converted.token_ids.push_back(static_cast<int32_t>(std::min<uint32_t>(id, INT32_MAX)));
    for (const v1::ContentPart& part : message.parts()) {
      converted.parts.push_back({part.text(), part.cache_breakpoint()});
    }
    for (const v1::ToolCall& call : message.tool_calls())
      converted.calls.push_back({call.id(), call.name(), call.arguments()});
    converted.call_id = message.tool_call_id();
    converted.name = message.name();
    chat.messages.push_back(std::move(converted));
  }
  return chat;
}

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kEos:
      return v1::FINISH_REASON_EOS;
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<PromptSource> SourceFromProto(const v1::PromptInput& proto) {
  PromptSource source;
  switch (proto.input_case()) {
    case v1::PromptInput::kText:
      source.input = proto.text();
      break;
    case v1::PromptInput::kTokenIds:
      source.input =
          std::vector<uint32_t>(proto.token_ids().ids().begin(), proto.token_ids().ids().end());
      break;
    case v1::PromptInput::kChat:
      source.input = ChatFromProto(proto.chat());
      break;
    case v1::PromptInput::INPUT_NOT_SET:
      return absl::InvalidArgumentError("prompt: must have text, token_ids or chat; got none");
  }
  source.omit_bos = proto.omit_bos();
  if (source.omit_bos && !proto.has_text()) {
    return absl::InvalidArgumentError("prompt.omit_bos: must be false unless prompt.text is set");
  }
  source.breakpoints.assign(proto.breakpoints().begin(), proto.breakpoints().end());
  return source;
}

absl::StatusOr<SamplingParams> SamplingFromProto(const v1::SamplingParams& proto,
                                                 const SamplingParams& open) {
  SamplingParams sampling = proto.server_defaults() ? open : SamplingParams();
  if (proto.has_temperature()) sampling.temperature = proto.temperature();
  if (proto.has_top_k()) sampling.top_k = proto.top_k();
  if (proto.has_top_p()) sampling.top_p = proto.top_p();
  sampling.min_p = proto.min_p();
  sampling.seed = proto.has_seed() || sampling.temperature == 0 ? proto.seed() : NewSeed();
  sampling.logprobs = proto.logprobs();
  sampling.report_logprobs = proto.report_logprobs();
  TokenRules& rules = sampling.rules;
  if (proto.has_repetition_penalty()) rules.repetition_penalty = proto.repetition_penalty();
  rules.presence_penalty = proto.presence_penalty();
  rules.frequency_penalty = proto.frequency_penalty();
  // An id above INT32_MAX becomes an id that no vocabulary has.
  const auto id_of = [](uint32_t id) {
    return static_cast<int32_t>(std::min<uint32_t>(id, INT32_MAX));
  };
  for (const auto& [id, bias] : proto.logit_bias()) rules.logit_bias.emplace_back(id_of(id), bias);
  std::sort(rules.logit_bias.begin(), rules.logit_bias.end());
  for (const uint32_t id : proto.stop_token_ids()) rules.stop_ids.push_back(id_of(id));
  for (const uint32_t id : proto.bad_token_ids()) rules.bad_ids.push_back(id_of(id));
  rules.min_tokens = proto.min_tokens();
  if (proto.has_prompt_logprobs()) sampling.prompt_logprobs = proto.prompt_logprobs();
  if (absl::Status status = sampling.Validate(); !status.ok()) return status;
  return sampling;
}

absl::StatusOr<BeamOptions> SearchFromProto(const v1::GenerateRequest& proto) {
  BeamOptions search;
  if (proto.beams() > 0) search.beams = proto.beams();
  if (proto.has_length_penalty()) search.length_penalty = proto.length_penalty();
  search.early_stopping = proto.early_stopping();
  if (absl::Status status = search.Validate(); !status.ok()) return status;
  if (search.beams > 1 || (!proto.has_length_penalty() && !search.early_stopping)) return search;
  return absl::InvalidArgumentError(
      absl::StrCat(search.early_stopping ? "early_stopping" : "length_penalty",
                   ": needs beams above 1; got beams ", proto.beams()));
}

absl::StatusOr<CacheMode> FromProto(v1::CacheMode mode) {
  switch (mode) {
    case v1::CACHE_MODE_DEFAULT:
      return CacheMode::kDefault;
    case v1::CACHE_MODE_READ:
      return CacheMode::kRead;
    case v1::CACHE_MODE_WRITE:
      return CacheMode::kWrite;
    case v1::CACHE_MODE_OFF:
      return CacheMode::kOff;
    default:
      return UnknownValue("cache", mode, v1::CacheMode_MAX);
  }
}

GrammarSpec GrammarFromProto(const v1::Grammar& proto) {
  return {proto.json_schema(), {proto.triggers().begin(), proto.triggers().end()}, proto.lenient()};
}

void StartedToProto(const StartedInfo& info, v1::Started* out) {
  out->set_prompt_tokens(info.prompt_tokens);
  out->set_cached_tokens(info.cached_tokens);
  out->set_matched_tokens(info.matched_tokens);
  out->set_source_tier(ToProto(info.source_tier));
  v1::Load* load = out->mutable_load();
  load->set_decision(LoadDecisionName(info.load.decision));
  if (info.load.load_estimate.has_value()) {
    load->set_load_estimate_ms(absl::ToDoubleMilliseconds(*info.load.load_estimate));
  }
  if (info.load.compute_estimate.has_value()) {
    load->set_compute_estimate_ms(absl::ToDoubleMilliseconds(*info.load.compute_estimate));
  }
  load->set_took_ms(absl::ToDoubleMilliseconds(info.load.took));
  load->set_bytes(info.load.bytes);
  if (info.load.source.has_value()) load->set_source(LoadSourceName(*info.load.source));
}

std::string LoadSentence(const LoadReport& load) {
  if (!load.load_estimate.has_value() || !load.compute_estimate.has_value()) return "";
  return absl::StrFormat("loading %.1f MB of it is expected to take %.0f ms, computing %.0f ms",
                         static_cast<double>(load.bytes) / 1e6,
                         absl::ToDoubleMilliseconds(*load.load_estimate),
                         absl::ToDoubleMilliseconds(*load.compute_estimate));
}

void NoteStart(const StartedInfo& info, CallNote* note) {
  note->tokens = info.prompt_tokens;
  note->hit_tokens = info.cached_tokens;
  note->tier = TierName(info.source_tier);
  const LoadReport& load = info.load;
  if (load.decision == LoadDecision::kNone) return;
  note->load = LoadDecisionName(load.decision);
  const auto ms = [](const std::optional<absl::Duration>& estimate) {
    return estimate.has_value() ? absl::ToDoubleMilliseconds(*estimate) : -1;
  };
  note->load_estimate_ms = ms(load.load_estimate);
  note->compute_estimate_ms = ms(load.compute_estimate);
  note->times.lookup += std::max(0.0, ms(load.plan_took));
}

void NoteFinish(const FinishedInfo& info, double call_ms, CallTimes* times) {
  const bool is_first = times->until_now == 0;
  (is_first ? times->prompt : times->publish) += call_ms - times->until_now - info.total_ms;
  times->until_now = call_ms;
  times->queue += info.queue_ms;
  times->fetch += info.fetch_ms;
  times->prefill += info.prefill_ms;
  times->decode += info.total_ms - info.queue_ms - info.fetch_ms - info.prefill_ms;
}

void TokensToProto(const TokenDelta& delta, v1::GeneratedToken* out) {
  for (const SampledToken& token : delta.tokens) {
    out->add_ids(token.id);
    if (delta.has_logprobs) {
      v1::TokenLogprob* chosen = out->add_logprobs();
      chosen->set_id(token.id);
      chosen->set_logprob(token.logprob);
    }
    TopToProto(token, out);
  }
  out->set_text(delta.text);
  out->set_sample(delta.sample);
}

void PromptToProto(absl::Span<const SampledToken> prompt, bool is_first, v1::PromptTokens* out) {
  for (const SampledToken& token : prompt) {
    v1::PromptTokens::Token* made = out->add_tokens();
    made->set_id(token.id);
    if (!std::exchange(is_first, false)) made->set_logprob(token.logprob);
    TopToProto(token, made);
  }
}

void FinishedToProto(const FinishedInfo& info, uint32_t prompt_tokens, v1::Finished* out) {
  out->set_reason(ToProto(info.reason));
  out->set_prompt_tokens(prompt_tokens);
  out->set_generated_tokens(info.generated_tokens);
  out->set_queue_ms(info.queue_ms);
  out->set_fetch_ms(info.fetch_ms);
  out->set_prefill_ms(info.prefill_ms);
  out->set_ttft_ms(info.ttft_ms);
  out->set_total_ms(info.total_ms);
  for (const SampleEnd& end : info.samples) {
    v1::SampleEnd* sample = out->add_samples();
    sample->set_reason(ToProto(end.reason));
    sample->set_generated_tokens(end.generated_tokens);
    sample->set_beam_score(end.beam_score);
    if (end.logits_sha256 != Digest{}) {
      sample->set_logits_sha256(end.logits_sha256.data(), end.logits_sha256.size());
    }
  }
  out->set_computed_tokens(info.computed_tokens);
  out->set_kv_bytes(info.kv_bytes);
  out->set_kv_cache(KvStrategyName(info.kv.strategy));
  out->set_exactness(ExactnessName(info.exactness));
  out->set_decode_steps(info.decode_steps);
  out->set_drafted_tokens(info.drafted_tokens);
  out->set_accepted_tokens(info.accepted_tokens);
  out->set_first_logits_sha256(info.first_logits_sha256.data(), info.first_logits_sha256.size());
}

void OutcomeToProto(const PublishOutcome& outcome, v1::Published* out) {
  out->set_published_tokens(outcome.published_tokens);
  out->set_durable(ToProto(outcome.durable));
  out->set_note(outcome.note);
}

}  // namespace hearth
