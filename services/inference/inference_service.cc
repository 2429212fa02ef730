#include "services/inference/inference_service.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "proto/state_format.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/inference/calls/load_state_call.h"
#include "services/inference/calls/save_state_call.h"
#include "services/rpc/client_access.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/slice_wire.h"
#include "services/serving/calls/late_answer.h"
#include "worker/text/text_stream.h"

namespace hearth {
namespace {

// For a caller that set no deadline: a store answers in milliseconds or not at all.
constexpr absl::Duration kExplainTimeout = absl::Seconds(10);
// Explanations under way: each holds its prompt's ids until the store answers.
constexpr Limit kExplanations{"explain", 64, 8};
constexpr uint64_t kLeastStateBytes = uint64_t{128} << 20;

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  return absl::FromChrono(context.deadline());
}

// The store's error as the worker's own: it names the store, and its silence is kUnavailable.
absl::Status AboutStore(const absl::Status& status, const std::string& store,
                        const ClientAccess& access) {
  if (status.ok()) return status;
  const bool silent = absl::IsDeadlineExceeded(status);
  std::string why = silent ? "it did not answer" : std::string(status.message());
  if (absl::IsUnavailable(status)) {
    const std::string tls = TlsMismatch(why, access);
    why = tls.empty() ? absl::StrCat("it cannot be reached (", why, ")") : tls;
  }
  return absl::Status(silent ? absl::StatusCode::kUnavailable : status.code(),
                      absl::StrCat("explain: the worker's store at ", store, ": ", why));
}

}  // namespace

InferenceService::InferenceService(Engine* engine, Admission* admission, InferenceOptions options)
    : engine_(engine),
      admission_(admission),
      options_(std::move(options)),
      // Room for a state that fills the pool, twice: as a file, and as what is made of it.
      state_limit_{"state",
                   4,
                   2,
                   uint64_t{4} << 20,
                   2 * std::max(engine->Stats().pool_limit_bytes, kLeastStateBytes),
                   "twice --pool-bytes"} {}

absl::StatusOr<Prompt> InferenceService::PromptFrom(
    const v1::PromptInput& input, PromptPurpose purpose,
    const grpc::CallbackServerContext* context) const {
  if (absl::Status status = CheckMessageBytes(input.ByteSizeLong()); !status.ok()) return status;
  absl::StatusOr<PromptSource> source = SourceFromProto(input);
  if (!source.ok()) return source.status();
  if (auto* chat = std::get_if<ChatInput>(&source->input)) chat->strict |= options_.strict_chats;
  const ModelConfig& config = engine_->config();
  const PromptLimits limits{static_cast<uint32_t>(config.vocab_size),
                            static_cast<uint32_t>(config.max_position_embeddings),
                            [context] { return context->IsCancelled(); }, options_.why_no_tokenizer,
                            options_.why_no_chats};
  return BuildPrompt(*source, purpose, options_.tokenizer, limits);
}

absl::Status InferenceService::AddPrompt(const v1::PromptInput& input, PromptPurpose purpose,
                                         const grpc::CallbackServerContext* context,
                                         EngineRequest* request) const {
  absl::StatusOr<Prompt> prompt = PromptFrom(input, purpose, context);
  if (!prompt.ok()) return prompt.status();
  request->token_ids = std::move(prompt->token_ids);
  request->breakpoints = std::move(prompt->breakpoints);
  request->asked = std::move(prompt->declared);
  request->deadline = DeadlineOf(*context);
  return absl::OkStatus();
}

SamplingParams InferenceService::OpenSampling() const {
  const GenerationDefaults& model =
      options_.generation_config ? engine_->config().generation : GenerationDefaults();
  const DefaultSampling& said = options_.default_sampling;
  SamplingParams open;
  open.temperature = said.temperature.value_or(static_cast<float>(model.temperature));
  open.top_k = said.top_k.value_or(static_cast<uint32_t>(model.top_k));
  open.top_p = said.top_p.value_or(static_cast<float>(model.top_p));
  return open;
}

absl::StatusOr<DefaultSampling> ParseDefaultSampling(const std::string& text) {
  DefaultSampling made;
  SamplingParams checked;
  for (const absl::string_view word : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(absl::StripAsciiWhitespace(word), absl::MaxSplits('=', 1));
    bool is_number = false;
    if (parts.first == "temperature") {
      is_number = absl::SimpleAtof(parts.second, &made.temperature.emplace());
    } else if (parts.first == "top_k") {
      is_number = absl::SimpleAtoi(parts.second, &made.top_k.emplace());
    } else if (parts.first == "top_p") {
      is_number = absl::SimpleAtof(parts.second, &made.top_p.emplace());
    }
    if (!is_number) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", word, "\" is none of temperature=NUMBER, top_k=NUMBER, top_p=NUMBER"));
    }
  }
  checked.temperature = made.temperature.value_or(0);
  checked.top_p = made.top_p.value_or(0);
  if (absl::Status status = checked.Validate(); !status.ok()) return status;
  return made;
}

absl::Status InferenceService::GenerateRequestFrom(const v1::GenerateRequest& request,
                                                   EngineRequest* converted,
                                                   GenerateOptions* options) const {
  absl::StatusOr<SamplingParams> sampling = SamplingFromProto(request.sampling(), OpenSampling());
  if (!sampling.ok()) return sampling.status();
  absl::StatusOr<BeamOptions> search = SearchFromProto(request);
  if (!search.ok()) return search.status();
  absl::StatusOr<CacheMode> cache = FromProto(request.cache());
  if (!cache.ok()) return cache.status();
  absl::StatusOr<Durability> durability = FromProto(request.durability());
  if (!durability.ok()) return durability.status();
  const std::vector<std::string> stop(request.stop().begin(), request.stop().end());
  if (absl::Status status = ValidateStopStrings(stop); !status.ok()) return status;
  if (!stop.empty() && options_.tokenizer == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("stop: ", options_.why_no_tokenizer, ", so there is no text to look in"));
  }
  if (request.max_new_tokens() == 0) {
    return absl::InvalidArgumentError("max_new_tokens: 0; at least 1");
  }
  if (request.first_draw() > kMaxDraws - request.max_new_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat("first_draw: ", request.first_draw(), " and ",
                                                   request.max_new_tokens(), " more are over ",
                                                   kMaxDraws));
  }
  converted->sampling = *sampling;
  converted->first_draw = request.first_draw();
  converted->max_new_tokens = request.max_new_tokens();
  converted->samples = request.n() == 0 ? 1 : request.n();
  converted->search = *search;
  converted->adapter = request.adapter();
  converted->ignore_eos = request.ignore_eos();
  converted->hash_logits = request.hash_logits();
  converted->cache = *cache;
  converted->kv_wish = {request.kv_cache(), request.kv_quantization()};
  if (request.has_speculate()) converted->speculate = request.speculate();
  converted->durability = *durability;
  converted->ttl_s = request.ttl_s();
  converted->hint = HintFromProto(request);
  if (absl::Status kv = engine_->Complete(converted); !kv.ok()) return kv;
  options->sampling = *sampling;
  options->tokenizer = options_.tokenizer;
  options->stop = stop;
  options->wait_published = request.wait_published();
  options->report_writes = request.report_writes();
  options->plan_wait = options_.plan_wait;
  if (request.report_progress()) options->progress_pause = options_.progress_pause;
  options->writes =
      converted->cache == CacheMode::kDefault || converted->cache == CacheMode::kWrite;
  options->on_finished = options_.on_finished;
  return absl::OkStatus();
}

template <typename Call, typename Request, typename Convert>
grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Follow(const char* method,
                                                                     Context* context,
                                                                     const Bytes* request,
                                                                     Convert convert) {
  const size_t request_bytes = request->Length();
  const auto call = std::make_shared<Call>(context);
  const absl::StatusOr<Identity> caller = call->Enter(admission_, method, request_bytes);
  if (!caller.ok()) {
    call->End(caller.status());
    return call.get();
  }
  // Held by the pool's job.
  const auto make = [convert, context, raw = call.get(), bytes = TakeRequest(request),
                     tenant = caller->tenant,
                     id = call->call()->note()->request_id]() -> absl::StatusOr<EngineRequest> {
    Request parsed;
    if (absl::Status status = ParseAwaited(*context, bytes, &parsed); !status.ok()) return status;
    EngineRequest made;
    made.tenant = tenant;
    made.request_id = id;
    const absl::Status converted = convert(parsed, raw, &made);
    return converted.ok() ? absl::StatusOr<EngineRequest>(std::move(made)) : converted;
  };
  call->Follow(engine_, &prompts_, caller->tenant, request_bytes, make);
  return call.get();
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(Context* context,
                                                                       const Bytes* request) {
  const auto convert = [this, context](const v1::GenerateRequest& parsed, GenerateCall* call,
                                       EngineRequest* made) {
    absl::Status status = GenerateRequestFrom(parsed, made, call->options());
    if (status.ok()) status = AddPrompt(parsed.prompt(), PromptPurpose::kGenerate, context, made);
    if (!status.ok()) return status;
    const auto context_tokens = static_cast<size_t>(engine_->config().max_position_embeddings);
    if (parsed.fits_context() && made->token_ids.size() < context_tokens) {
      const auto left = static_cast<uint32_t>(context_tokens - made->token_ids.size());
      made->max_new_tokens = std::min(made->max_new_tokens, left);
    }
    call->options()->recent = recent_.Begin(*made);
    return status;
  };
  return Follow<GenerateCall, v1::GenerateRequest>("Generate", context, request, convert);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::SaveState(Context* context,
                                                                        const Bytes* request) {
  const auto reactor = std::make_shared<SaveStateCall>(context);
  const absl::StatusOr<Identity> caller =
      reactor->Enter(admission_, "SaveState", request->Length());
  absl::Status begun = caller.status();
  if (begun.ok()) begun = reactor->call()->TakePlace(state_limit_, *caller);
  if (begun.ok()) begun = CheckSmall<v1::SaveStateRequest>(*request);
  if (begun.ok()) {
    reactor->Start(engine_, &prompts_, &recent_, caller->tenant, TakeRequest(request));
  } else {
    reactor->End(begun);
  }
  return reactor.get();
}

grpc::ServerReadReactor<grpc::ByteBuffer>* InferenceService::LoadState(Context* context,
                                                                       Bytes* response) {
  const auto reactor = std::make_shared<LoadStateCall>(engine_, &prompts_, context, response);
  reactor->Start(admission_, state_limit_);
  return reactor.get();
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Prefill(Context* context,
                                                                      const Bytes* request) {
  const auto convert = [this, context](const v1::PrefillRequest& parsed, PrefillCall* call,
                                       EngineRequest* made) {
    const absl::StatusOr<Durability> durability = FromProto(parsed.durability());
    if (!durability.ok()) return durability.status();
    if (parsed.report_progress()) *call->progress_pause() = options_.progress_pause;
    made->max_new_tokens = 0;
    made->durability = *durability;
    made->ttl_s = parsed.ttl_s();
    made->hint = HintFromProto(parsed);
    made->adapter = parsed.adapter();
    return AddPrompt(parsed.prompt(), PromptPurpose::kPrefill, context, made);
  };
  return Follow<PrefillCall, v1::PrefillRequest>("Prefill", context, request, convert);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(Context* context, const Bytes* request,
                                                     Bytes* response) {
  const auto admit = [this](const Identity& caller, const Bytes& bytes, LateAnswer*,
                            FairPool::Job job) {
    return prompts_.SubmitRequest(caller.tenant, bytes.Length(), std::move(job));
  };
  const auto tokenize = [this, context](const Identity&, const v1::TokenizeRequest& asked,
                                        v1::TokenizeResponse* made) -> absl::Status {
    const absl::StatusOr<Prompt> prompt =
        PromptFrom(asked.prompt(), PromptPurpose::kPrefill, context);
    if (!prompt.ok()) return prompt.status();
    const std::vector<int32_t>& ids = prompt->token_ids;
    made->mutable_token_ids()->Add(ids.begin(), ids.end());
    made->mutable_breakpoints()->Add(prompt->breakpoints.begin(), prompt->breakpoints.end());
    made->set_text(prompt->text);
    return absl::OkStatus();
  };
  return AnswerOnPool<v1::TokenizeRequest, v1::TokenizeResponse>(
      admission_, "Tokenize", context, request, response, admit, tokenize);
}

grpc::ServerUnaryReactor* InferenceService::GetModel(Context* context, const Bytes* request,
                                                     Bytes* response) {
  const auto begin = [&](const Identity&, const std::shared_ptr<LateAnswer>& answer) {
    const Engine& engine = *engine_;
    v1::GetModelResponse made;
    const ModelConfig& config = engine.config();
    made.set_model_dir(options_.model_dir);
    made.set_version(options_.version);
    made.set_device(engine.device());
    made.set_dtype(engine.dtype());
    made.set_chunk_tokens(engine.layout().chunk_tokens);
    made.set_context_tokens(config.max_position_embeddings);
    made.set_vocab_size(config.vocab_size);
    made.set_window(config.attention.sliding_window);
    made.set_exactness(ExactnessName(engine.layout().exactness));
    made.set_why_not_invariant(engine.why_not_invariant());
    const EngineStats stats = engine.Stats();
    made.set_kv_budget_bytes(stats.kv_budget_bytes);
    made.set_kv_used_bytes(stats.kv_used_bytes);
    made.set_kv_offload_budget_bytes(stats.kv_offload_budget_bytes);
    made.set_kv_offload_used_bytes(stats.kv_offload_used_bytes);
    made.set_weights(engine.weights());
    made.set_arithmetic(engine.arithmetic());
    made.set_has_tokenizer(options_.tokenizer != nullptr);
    made.set_why_no_tokenizer(options_.why_no_tokenizer);
    made.set_why_no_chats(options_.why_no_chats);
    made.mutable_notes()->Add(options_.notes.begin(), options_.notes.end());
    if (options_.reachability != nullptr && !options_.reachability->is_reached()) {
      made.set_unreachable_store(options_.reachability->address());
    }
    ToProto(engine.fingerprint(), made.mutable_fingerprint());
    for (const AdapterInfo& adapter : engine.adapters()) {
      v1::Adapter* const out = made.add_adapters();
      out->set_name(adapter.name);
      out->set_rank(static_cast<uint32_t>(adapter.rank));
      out->set_bytes(adapter.bytes);
      ToProto(adapter.fingerprint, out->mutable_fingerprint());
    }
    const SamplingParams open = OpenSampling();
    made.mutable_default_sampling()->set_temperature(open.temperature);
    made.mutable_default_sampling()->set_top_k(open.top_k);
    made.mutable_default_sampling()->set_top_p(open.top_p);
    made.set_default_sampling_from(options_.generation_config
                                       ? "--default-sampling, generation_config.json, OpenAI's"
                                       : "--default-sampling, OpenAI's");
    made.mutable_eos_token_ids()->Add(config.eos_token_ids.begin(), config.eos_token_ids.end());
    *response = MessageBytes(made);
    answer->Finish(absl::OkStatus());
    return absl::OkStatus();
  };
  return AnswerLater(admission_, "GetModel", context, request->Length(), begin);
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
  prefix.adapter = request.adapter();
  if (absl::Status known = engine_->CheckAdapter(prefix.adapter); !known.ok()) return known;
  const absl::Time deadline = std::min(DeadlineOf(*context), absl::Now() + kExplainTimeout);
  options_.explainer->Explain(std::move(prefix), deadline, std::move(done));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* InferenceService::Explain(Context* context, const Bytes* request,
                                                    Bytes* response) {
  const Bytes bytes = TakeRequest(request);
  const auto begin = [&](const Identity& caller,
                         const std::shared_ptr<LateAnswer>& answer) -> absl::Status {
    const absl::Status placed = answer->call()->TakePlace(kExplanations, caller);
    if (!placed.ok()) return placed;
    if (options_.explainer == nullptr) {
      return absl::FailedPreconditionError("explain: the worker runs without a store");
    }
    const auto done = [engine = engine_, store = options_.store, access = options_.store_access,
                       answer, response](absl::Status status, v1::ExplainResponse ok) {
      const std::string load = status.ok() && ok.usable_tokens() > 0
                                   ? LoadSentence(engine->EstimateLoad(ok.usable_tokens()))
                                   : "";
      if (!load.empty()) ok.set_summary(absl::StrCat(ok.summary(), "; ", load));
      if (status.ok()) *response = MessageBytes(ok);
      answer->Finish(AboutStore(status, store, access));
    };
    const auto ask = [this, answer, context, bytes, done, tenant = caller.tenant] {
      v1::ExplainInputRequest parsed;
      absl::Status asked = ParseAwaited(*context, bytes, &parsed);
      if (asked.ok()) asked = StartExplain(parsed, tenant, context, done);
      if (!asked.ok()) answer->Finish(asked);
    };
    return prompts_.SubmitRequest(caller.tenant, bytes.Length(), ask);
  };
  return AnswerLater(admission_, "Explain", context, bytes.Length(), begin);
}

}  // namespace hearth
