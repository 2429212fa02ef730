#include "services/inference/inference_service.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/slice_wire.h"
#include "services/serving/calls/late_answer.h"

namespace hearth {
namespace {

// Time limit of Explain if the caller set no deadline. A store answers in milliseconds or not at
// all.
constexpr absl::Duration kExplainTimeout = absl::Seconds(10);
// Maximum number of concurrent Explain calls. Each holds the token ids of its prompt until the
// store answers.
constexpr Limit kExplanations{"explain", 64};
constexpr uint64_t kLeastStateBytes = uint64_t{128} << 20;

// Returns an error of the store as the worker's own error, with the store's address. If the store
// is silent, the error is kUnavailable.
absl::Status AboutStore(const absl::Status& status, const std::string& store,
                        const ClientAccess& access) {
  if (status.ok()) return status;
  const bool silent = absl::IsDeadlineExceeded(status);
  std::string why = silent ? "the store did not answer" : std::string(status.message());
  if (absl::IsUnavailable(status)) {
    const std::string tls = TlsMismatch(why, access);
    why = tls.empty() ? absl::StrCat("the store cannot be reached (", why, ")") : tls;
  }
  return absl::Status(silent ? absl::StatusCode::kUnavailable : status.code(),
                      absl::StrCat("explain: the worker's store at ", store, ": ", why));
}

}  // namespace

InferenceService::InferenceService(Generator* generator, Admission* admission,
                                   InferenceOptions options)
    : generator_(generator),
      admission_(admission),
      options_(std::move(options)),
      // Memory for a state that fills the pool, counted twice: as a file, and as the objects made
      // of it.
      state_limit_{"state", 4, uint64_t{4} << 20,
                   2 * std::max(generator->engine()->Stats().pool_limit_bytes, kLeastStateBytes),
                   "twice --pool-bytes"} {}

ByteStream* InferenceService::Generate(Context* context, const Bytes* request) {
  return StartGenerate(generator_, admission_, PromptPurpose::kGenerate, context, request);
}

ByteStream* InferenceService::Prefill(Context* context, const Bytes* request) {
  return StartGenerate(generator_, admission_, PromptPurpose::kPrefill, context, request);
}

ByteStream* InferenceService::SaveState(Context* context, const Bytes* request) {
  return StartSaveState(generator_, admission_, state_limit_, context, request);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* InferenceService::LoadState(Context* context,
                                                                       Bytes* response) {
  return StartLoadState(generator_, admission_, state_limit_, context, response);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(Context* context, const Bytes* request,
                                                     Bytes* response) {
  const auto admit = [this](const Identity& caller, const Bytes& bytes, LateAnswer*,
                            FairPool::Job job) {
    return generator_->pool()->SubmitRequest(caller.tenant, bytes.Length(), std::move(job));
  };
  const auto tokenize = [this, context](const Identity&, const v1::TokenizeRequest& asked,
                                        v1::TokenizeResponse* made) -> absl::Status {
    const absl::StatusOr<Prompt> prompt = generator_->MakePrompt(
        asked.prompt(), PromptPurpose::kPrefill, [context] { return context->IsCancelled(); });
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
    const Engine& engine = *generator_->engine();
    const GeneratorOptions& serves = generator_->options();
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
    made.set_weights(engine.weights());
    made.set_arithmetic(engine.arithmetic());
    made.set_has_tokenizer(serves.tokenizer != nullptr);
    made.set_why_no_tokenizer(serves.why_no_tokenizer);
    made.set_why_no_chats(serves.why_no_chats);
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
    const SamplingParams open = generator_->open_sampling();
    made.mutable_default_sampling()->set_temperature(open.temperature);
    made.mutable_default_sampling()->set_top_k(open.top_k);
    made.mutable_default_sampling()->set_top_p(open.top_p);
    made.set_default_sampling_from(serves.generation_config
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
                                            ExplainCallback done) const {
  GenerationTerms terms;
  terms.tenant = tenant;
  terms.deadline = std::min(absl::FromChrono(context->deadline()), absl::Now() + kExplainTimeout);
  return generator_->Explain(
      terms, request.prompt(), PromptPurpose::kPrefill, request.adapter(),
      [context] { return context->IsCancelled(); }, std::move(done));
}

grpc::ServerUnaryReactor* InferenceService::Explain(Context* context, const Bytes* request,
                                                    Bytes* response) {
  const Bytes bytes = TakeRequest(request);
  const auto begin = [&](const Identity& caller,
                         const std::shared_ptr<LateAnswer>& answer) -> absl::Status {
    const absl::Status placed = answer->call()->TakePlace(kExplanations, caller);
    if (!placed.ok()) return placed;
    const auto done = [engine = generator_->engine(), store = options_.store,
                       access = options_.store_access, answer,
                       response](absl::Status status, v1::ExplainResponse ok) {
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
    return generator_->pool()->SubmitRequest(caller.tenant, bytes.Length(), ask);
  };
  return AnswerLater(admission_, "Explain", context, bytes.Length(), begin);
}

}  // namespace hearth
