#include "services/inference_service.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/enter_call.h"
#include "services/generate_call.h"
#include "services/inference_conversion.h"
#include "services/late_answer.h"
#include "services/prefill_call.h"
#include "services/proto_conversion.h"
#include "services/status_conversion.h"
#include "worker/text_stream.h"

namespace hearth {
namespace {

// For a caller that set no deadline: a store answers in milliseconds or not at all.
constexpr absl::Duration kExplainTimeout = absl::Seconds(10);

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  return absl::FromChrono(context.deadline());
}

}  // namespace

InferenceService::InferenceService(InferenceParts parts) : parts_(std::move(parts)) {}

absl::StatusOr<Prompt> InferenceService::PromptFrom(
    const v1::PromptInput& input, PromptPurpose purpose,
    const grpc::CallbackServerContext* context) const {
  if (context->IsCancelled()) return absl::CancelledError("the caller went away");
  if (absl::Status status = CheckMessageBytes(input.ByteSizeLong()); !status.ok()) return status;
  absl::StatusOr<PromptSource> source = SourceFromProto(input);
  if (!source.ok()) return source.status();
  if (auto* chat = std::get_if<ChatInput>(&source->input)) chat->strict |= parts_.strict_chats;
  const ModelConfig& config = parts_.engine->config();
  const PromptLimits limits{static_cast<uint32_t>(config.vocab_size),
                            static_cast<uint32_t>(config.max_position_embeddings),
                            [context] { return context->IsCancelled(); }};
  return BuildPrompt(*source, purpose, parts_.tokenizer, limits);
}

absl::StatusOr<EngineRequest> InferenceService::GenerateRequestFrom(
    const v1::GenerateRequest& request, const grpc::CallbackServerContext& context,
    const absl::StatusOr<Identity>& caller, const std::string& request_id) const {
  if (!caller.ok()) return caller.status();
  absl::StatusOr<SamplingParams> sampling = SamplingFromProto(request.sampling());
  if (!sampling.ok()) return sampling.status();
  absl::StatusOr<CacheMode> cache = FromProto(request.cache());
  if (!cache.ok()) return cache.status();
  absl::StatusOr<Durability> durability = FromProto(request.durability());
  if (!durability.ok()) return durability.status();
  const std::vector<std::string> stop(request.stop().begin(), request.stop().end());
  if (absl::Status status = ValidateStopStrings(stop); !status.ok()) return status;
  if (!stop.empty() && parts_.tokenizer == nullptr) {
    return absl::FailedPreconditionError(
        "stop: the model folder has no tokenizer.model, so there is no text to look in");
  }
  if (request.max_new_tokens() == 0) {
    return absl::InvalidArgumentError("max_new_tokens: 0; at least 1");
  }
  EngineRequest converted;
  converted.tenant = caller->tenant;
  converted.request_id = request_id;
  converted.sampling = *sampling;
  converted.max_new_tokens = request.max_new_tokens();
  converted.ignore_eos = request.ignore_eos();
  converted.cache = *cache;
  converted.durability = *durability;
  converted.deadline = DeadlineOf(context);
  return converted;
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const absl::StatusOr<Identity> caller = CallerOf(parts_.identities, *context);
  auto call = EnterCall(parts_.gate, caller, "Generate", *context, request->ByteSizeLong());
  const bool entered = call != nullptr;
  absl::StatusOr<EngineRequest> converted = CallGate::ClosedError();
  if (entered) {
    converted = GenerateRequestFrom(*request, *context, caller, call->note()->request_id);
  }
  GenerateCall::Options options;
  if (converted.ok()) {
    options.sampling = converted->sampling;
    options.tokenizer = parts_.tokenizer;
    options.stop.assign(request->stop().begin(), request->stop().end());
    options.wait_published = request->wait_published();
    options.writes =
        converted->cache == CacheMode::kDefault || converted->cache == CacheMode::kWrite;
    options.on_finished = parts_.on_finished;
  }
  const auto reactor = GenerateCall::Create(std::move(call), context, std::move(options));
  if (converted.ok()) {
    const auto make = [this, request, context] {
      return PromptFrom(request->prompt(), PromptPurpose::kGenerate, context);
    };
    reactor->Start(&prompts_, request->SpaceUsedLong(), make, parts_.engine, *std::move(converted));
  } else {
    reactor->Refuse(converted.status());
  }
  return reactor.get();
}

absl::StatusOr<EngineRequest> InferenceService::PrefillRequestFrom(
    const v1::PrefillRequest& request, const grpc::CallbackServerContext& context,
    const absl::StatusOr<Identity>& caller, const std::string& request_id) const {
  if (!caller.ok()) return caller.status();
  absl::StatusOr<Durability> durability = FromProto(request.durability());
  if (!durability.ok()) return durability.status();
  EngineRequest converted;
  converted.tenant = caller->tenant;
  converted.request_id = request_id;
  converted.max_new_tokens = 0;
  converted.durability = *durability;
  converted.ttl_s = request.ttl_s();
  converted.deadline = DeadlineOf(context);
  return converted;
}

grpc::ServerUnaryReactor* InferenceService::Prefill(grpc::CallbackServerContext* context,
                                                    const v1::PrefillRequest* request,
                                                    v1::PrefillResponse* response) {
  const absl::StatusOr<Identity> caller = CallerOf(parts_.identities, *context);
  auto call = EnterCall(parts_.gate, caller, "Prefill", *context, request->ByteSizeLong());
  const bool entered = call != nullptr;
  const std::string request_id = entered ? call->note()->request_id : "";
  const auto reactor = PrefillCall::Create(std::move(call), context, response);
  absl::StatusOr<EngineRequest> converted = CallGate::ClosedError();
  if (entered) converted = PrefillRequestFrom(*request, *context, caller, request_id);
  if (converted.ok()) {
    const auto make = [this, request, context] {
      return PromptFrom(request->prompt(), PromptPurpose::kPrefill, context);
    };
    reactor->Start(&prompts_, request->SpaceUsedLong(), make, parts_.engine, *std::move(converted));
  } else {
    reactor->Refuse(converted.status());
  }
  return reactor.get();
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  const auto begin = [&](const Identity& caller, const std::shared_ptr<LateAnswer>& answer) {
    const auto tokenize = [this, answer, context, request, response] {
      const absl::StatusOr<Prompt> prompt =
          PromptFrom(request->prompt(), PromptPurpose::kPrefill, context);
      if (!prompt.ok()) return answer->Finish(prompt.status());
      const std::vector<int32_t>& ids = prompt->token_ids;
      response->mutable_token_ids()->Add(ids.begin(), ids.end());
      response->mutable_breakpoints()->Add(prompt->breakpoints.begin(), prompt->breakpoints.end());
      response->set_text(prompt->text);
      answer->Finish(absl::OkStatus());
    };
    return prompts_.Submit(caller.tenant, request->SpaceUsedLong(), tokenize);
  };
  return AnswerLater(parts_.gate, parts_.identities, "Tokenize", context, request->ByteSizeLong(),
                     begin);
}

grpc::ServerUnaryReactor* InferenceService::GetModel(grpc::CallbackServerContext* context,
                                                     const v1::GetModelRequest*,
                                                     v1::GetModelResponse* response) {
  const auto begin = [&](const Identity&, const std::shared_ptr<LateAnswer>& answer) {
    const Engine& engine = *parts_.engine;
    const ModelConfig& config = engine.config();
    response->set_model_dir(parts_.model_dir);
    response->set_version(parts_.version);
    response->set_device(engine.device());
    response->set_dtype(engine.dtype());
    response->set_chunk_tokens(engine.layout().chunk_tokens);
    response->set_context_tokens(config.max_position_embeddings);
    response->set_vocab_size(config.vocab_size);
    response->set_window(config.sliding_window);
    response->set_has_tokenizer(parts_.tokenizer != nullptr);
    ToProto(engine.fingerprint(), response->mutable_fingerprint());
    response->mutable_eos_token_ids()->Add(config.eos_token_ids.begin(),
                                           config.eos_token_ids.end());
    answer->Finish(absl::OkStatus());
    return absl::OkStatus();
  };
  return AnswerLater(parts_.gate, parts_.identities, "GetModel", context, 0, begin);
}

absl::Status InferenceService::StartExplain(const v1::ExplainInputRequest& request,
                                            const std::string& tenant,
                                            const grpc::CallbackServerContext* context,
                                            Explainer::ExplainCallback done) const {
  absl::StatusOr<Prompt> prompt = PromptFrom(request.prompt(), PromptPurpose::kPrefill, context);
  if (!prompt.ok()) return prompt.status();
  PrefixRequest prefix;
  prefix.token_ids.assign(prompt->token_ids.begin(), prompt->token_ids.end());
  prefix.cuts = std::move(prompt->breakpoints);
  prefix.tenant = tenant;
  const absl::Time deadline = std::min(DeadlineOf(*context), absl::Now() + kExplainTimeout);
  parts_.explainer->Explain(std::move(prefix), deadline, std::move(done));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* InferenceService::Explain(grpc::CallbackServerContext* context,
                                                    const v1::ExplainInputRequest* request,
                                                    v1::ExplainResponse* response) {
  const auto begin = [&](const Identity& caller,
                         const std::shared_ptr<LateAnswer>& answer) -> absl::Status {
    absl::StatusOr<std::shared_ptr<void>> place = explains_.Enter(caller);
    if (!place.ok()) return place.status();
    answer->Hold(*std::move(place));
    if (parts_.explainer == nullptr) {
      return absl::FailedPreconditionError("explain: the worker runs without a store");
    }
    const auto done = [answer, response](absl::Status status, const v1::ExplainResponse& ok) {
      if (status.ok()) *response = ok;
      // The store's silence is the worker's own unavailability here.
      if (absl::IsDeadlineExceeded(status)) {
        status = absl::UnavailableError("explain: the store did not answer");
      }
      answer->Finish(std::move(status));
    };
    const auto ask = [this, answer, context, request, done, tenant = caller.tenant] {
      const absl::Status asked = StartExplain(*request, tenant, context, done);
      if (!asked.ok()) answer->Finish(asked);
    };
    return prompts_.Submit(caller.tenant, request->SpaceUsedLong(), ask);
  };
  return AnswerLater(parts_.gate, parts_.identities, "Explain", context, request->ByteSizeLong(),
                     begin);
}

}  // namespace hearth
