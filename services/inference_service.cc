#include "services/inference_service.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/restore_rule.h"
#include "services/generate_call.h"
#include "services/inference_conversion.h"
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

// A unary call whose answer is there at once.
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, CallGate* gate,
                                 Identities* identities, const char* method,
                                 const std::function<absl::Status()>& body) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  std::unique_ptr<CallGate::Call> call = gate->Enter(method);
  absl::Status status = CallGate::ClosedError();
  if (call != nullptr) {
    const absl::Status known = CallerOf(identities, *context).status();
    status = call->Finish(known.ok() ? body() : known);
  }
  reactor->Finish(ToGrpcStatus(status, context));
  return reactor;
}

}  // namespace

InferenceService::InferenceService(InferenceParts parts) : parts_(std::move(parts)) {}

absl::StatusOr<Prompt> InferenceService::PromptFrom(const v1::PromptInput& input,
                                                    PromptPurpose purpose) const {
  if (absl::Status status = CheckMessageBytes(input.ByteSizeLong()); !status.ok()) return status;
  absl::StatusOr<PromptSource> source = SourceFromProto(input);
  if (!source.ok()) return source.status();
  const ModelConfig& config = parts_.engine->config();
  const PromptLimits limits{static_cast<uint32_t>(config.vocab_size),
                            static_cast<uint32_t>(config.max_position_embeddings)};
  return BuildPrompt(*source, purpose, parts_.tokenizer, limits);
}

absl::StatusOr<EngineRequest> InferenceService::GenerateRequestFrom(
    const v1::GenerateRequest& request, const grpc::CallbackServerContext& context) const {
  const absl::StatusOr<Identity> caller = CallerOf(parts_.identities, context);
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
  absl::StatusOr<Prompt> prompt = PromptFrom(request.prompt(), PromptPurpose::kGenerate);
  if (!prompt.ok()) return prompt.status();
  EngineRequest converted;
  converted.tenant = caller->tenant;
  converted.token_ids = std::move(prompt->token_ids);
  converted.breakpoints = std::move(prompt->breakpoints);
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
  std::unique_ptr<CallGate::Call> call = parts_.gate->Enter("Generate");
  const bool entered = call != nullptr;
  absl::StatusOr<EngineRequest> converted = CallGate::ClosedError();
  if (entered) converted = GenerateRequestFrom(*request, *context);
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
    reactor->Start(parts_.engine, *std::move(converted));
  } else {
    reactor->Refuse(converted.status());
  }
  return reactor.get();
}

absl::StatusOr<EngineRequest> InferenceService::PrefillRequestFrom(
    const v1::PrefillRequest& request, const grpc::CallbackServerContext& context) const {
  const absl::StatusOr<Identity> caller = CallerOf(parts_.identities, context);
  if (!caller.ok()) return caller.status();
  absl::StatusOr<Durability> durability = FromProto(request.durability());
  if (!durability.ok()) return durability.status();
  absl::StatusOr<Prompt> prompt = PromptFrom(request.prompt(), PromptPurpose::kPrefill);
  if (!prompt.ok()) return prompt.status();
  EngineRequest converted;
  converted.tenant = caller->tenant;
  converted.token_ids = std::move(prompt->token_ids);
  converted.breakpoints = std::move(prompt->breakpoints);
  converted.max_new_tokens = 0;
  converted.durability = *durability;
  converted.ttl_s = request.ttl_s();
  converted.deadline = DeadlineOf(context);
  return converted;
}

std::vector<uint32_t> InferenceService::BoundariesOf(const EngineRequest& request) const {
  return KeptBoundaries(request.token_ids.size(), request.breakpoints, /*matched_tokens=*/0,
                        /*restored_tokens=*/0, parts_.engine->layout().chunk_tokens);
}

grpc::ServerUnaryReactor* InferenceService::Prefill(grpc::CallbackServerContext* context,
                                                    const v1::PrefillRequest* request,
                                                    v1::PrefillResponse* response) {
  std::unique_ptr<CallGate::Call> call = parts_.gate->Enter("Prefill");
  const bool entered = call != nullptr;
  const auto reactor = PrefillCall::Create(std::move(call), context, response);
  absl::StatusOr<EngineRequest> converted = CallGate::ClosedError();
  if (entered) converted = PrefillRequestFrom(*request, *context);
  if (converted.ok()) {
    for (uint32_t boundary : BoundariesOf(*converted)) response->add_boundaries(boundary);
    reactor->Start(parts_.engine, *std::move(converted));
  } else {
    reactor->Refuse(converted.status());
  }
  return reactor.get();
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  return Answer(context, parts_.gate, parts_.identities, "Tokenize", [&]() -> absl::Status {
    absl::StatusOr<Prompt> prompt = PromptFrom(request->prompt(), PromptPurpose::kPrefill);
    if (!prompt.ok()) return prompt.status();
    response->mutable_token_ids()->Add(prompt->token_ids.begin(), prompt->token_ids.end());
    response->mutable_breakpoints()->Add(prompt->breakpoints.begin(), prompt->breakpoints.end());
    response->set_text(prompt->text);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* InferenceService::GetModel(grpc::CallbackServerContext* context,
                                                     const v1::GetModelRequest*,
                                                     v1::GetModelResponse* response) {
  return Answer(context, parts_.gate, parts_.identities, "GetModel", [&] {
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
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* InferenceService::Explain(grpc::CallbackServerContext* context,
                                                    const v1::ExplainInputRequest* request,
                                                    v1::ExplainResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  std::shared_ptr<CallGate::Call> call = parts_.gate->Enter("Explain");
  const auto finish = [context, reactor, call](absl::Status status) {
    if (call != nullptr) status = call->Finish(std::move(status));
    reactor->Finish(ToGrpcStatus(status, context));
    return reactor;
  };
  if (call == nullptr) return finish(CallGate::ClosedError());
  const absl::StatusOr<Identity> caller = CallerOf(parts_.identities, *context);
  if (!caller.ok()) return finish(caller.status());
  if (parts_.explainer == nullptr) {
    return finish(absl::FailedPreconditionError("explain: the worker runs without a store"));
  }
  absl::StatusOr<Prompt> prompt = PromptFrom(request->prompt(), PromptPurpose::kPrefill);
  if (!prompt.ok()) return finish(prompt.status());
  PrefixRequest prefix;
  prefix.token_ids.assign(prompt->token_ids.begin(), prompt->token_ids.end());
  prefix.cuts = std::move(prompt->breakpoints);
  prefix.tenant = caller->tenant;
  const absl::Time deadline = std::min(DeadlineOf(*context), absl::Now() + kExplainTimeout);
  parts_.explainer->Explain(std::move(prefix), deadline,
                            [finish, response](absl::Status status, const v1::ExplainResponse& ok) {
                              if (status.ok()) *response = ok;
                              // The store's silence is the worker's own unavailability here.
                              if (absl::IsDeadlineExceeded(status)) {
                                status =
                                    absl::UnavailableError("explain: the store did not answer");
                              }
                              finish(std::move(status));
                            });
  return reactor;
}

}  // namespace hearth
