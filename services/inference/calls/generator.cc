#include "services/inference/calls/generator.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <cassert>
#include <limits>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/restore_rule.h"
#include "proto/state_format.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/rpc/proto_conversion.h"
#include "worker/text/text_stream.h"

namespace hearth {
namespace {

// Whether to report progress now. If so, sets *next to the time of the next report, `pause` later.
bool IsProgressDue(absl::Duration pause, absl::Time* next) {
  const absl::Time now = absl::Now();
  if (now < *next) return false;
  *next = now + pause;
  return true;
}

// Generation: gets the engine's events of one request and gives its sink the tokens with their
// text.
//
// Thread safety: called by the engine's threads, one event at a time; events need no lock for the
// members without a guard. Ownership: the request's callbacks keep the Generation, because a
// publish may end after the call.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(Engine* engine, const GeneratorOptions& options, const v1::GenerateRequest& request,
             std::shared_ptr<GenerationSink> sink)
      : engine_(engine),
        tokenizer_(options.tokenizer),
        stop_(request.stop().begin(), request.stop().end()),
        wait_published_(request.wait_published()),
        plan_wait_(request.report_writes() ? options.plan_wait : absl::ZeroDuration()),
        on_finished_(options.on_finished),
        progress_pause_(request.report_progress() ? options.progress_pause
                                                  : absl::InfiniteDuration()),
        sink_(std::move(sink)) {}

  // `recent`: gets the tokens of the first answer; may be null.
  absl::Status Submit(EngineRequest request, std::shared_ptr<RecentAnswer> recent);

 private:
  bool OnToken(const SampledToken& token);
  void OnFinished(const FinishedInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnPlanned(uint32_t written) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnPublished(const PublishOutcome& outcome) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives end_, the stored end of the answer, to the sink, if there is one.
  void DeliverEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Used only in the engine's events: the engine may be destroyed before this object.
  Engine* const engine_;
  const Tokenizer* const tokenizer_;
  const std::vector<std::string> stop_;  // stop strings, already validated
  const bool wait_published_;
  const absl::Duration plan_wait_;  // longest wait for the store's publish plan; 0: none
  const std::function<void(const FinishedInfo&)> on_finished_;
  // least time between two reports; InfiniteDuration: no reports
  const absl::Duration progress_pause_;
  const std::shared_ptr<GenerationSink> sink_;
  // The members below are set by Submit.
  SamplingParams sampling_;
  std::shared_ptr<RecentAnswer> recent_;
  uint32_t prompt_tokens_ = 0;
  bool writes_ = false;    // the request may publish: the engine reports the outcome
  bool searches_ = false;  // a beam search: all tokens come at the end, in one event

  absl::Time next_progress_;
  // one for each answer; empty without a tokenizer
  std::vector<std::unique_ptr<TextStream>> texts_;
  std::vector<SampledToken> found_;  // result of a beam search; found_text_ has its text
  std::string found_text_;
  bool has_prompt_ = false;  // the sink has got the beginning of the prompt

  // Held while the sink gets the last events, which come from several threads.
  absl::Mutex mutex_;
  // OnFinished's `written`, from the store's plan
  std::optional<uint32_t> written_ ABSL_GUARDED_BY(mutex_);
  std::optional<FinishedInfo> end_ ABSL_GUARDED_BY(mutex_);  // held until the store's plan arrives
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
};

absl::Status Generation::Submit(EngineRequest request, std::shared_ptr<RecentAnswer> recent) {
  sampling_ = request.sampling;
  assert(texts_.empty() && prompt_tokens_ == 0);  // called once
  recent_ = std::move(recent);
  prompt_tokens_ = static_cast<uint32_t>(request.token_ids.size());
  writes_ = request.writes();
  searches_ = request.searches();
  if (tokenizer_ != nullptr && request.samples <= kMaxSamples) {
    for (uint32_t i = 0; i < request.samples; ++i) {
      texts_.push_back(std::make_unique<TextStream>(tokenizer_, stop_));
    }
  }
  const auto self = shared_from_this();
  EngineCallbacks callbacks;
  callbacks.on_started = [self](const StartedInfo& info) {
    const SamplingParams& sampling = self->sampling_;
    const bool draws = sampling.temperature > 0;
    self->sink_->OnStarted(info, draws ? std::optional<uint64_t>(sampling.seed) : std::nullopt);
  };
  if (progress_pause_ != absl::InfiniteDuration()) {
    callbacks.on_progress = [self](uint32_t ready_tokens) {
      if (!IsProgressDue(self->progress_pause_, &self->next_progress_)) return;
      self->sink_->OnProgress(ready_tokens);
    };
  }
  callbacks.on_prompt = [self](absl::Span<const SampledToken> tokens) {
    self->sink_->OnPrompt(tokens, !std::exchange(self->has_prompt_, true));
  };
  callbacks.on_token = [self](const SampledToken& token) { return self->OnToken(token); };
  callbacks.stops = [self](absl::Span<const int32_t> ids) {
    return self->tokenizer_ != nullptr && EndsWithStopString(*self->tokenizer_, self->stop_, ids);
  };
  callbacks.on_finished = [self](const FinishedInfo& info) { self->OnFinished(info); };
  callbacks.on_planned = [self](uint32_t written) { self->OnPlanned(written); };
  callbacks.on_published = [self](const PublishOutcome& outcome) { self->OnPublished(outcome); };
  callbacks.on_error = [self](const absl::Status& status) { self->sink_->OnEnd(status); };
  auto handle = engine_->Submit(std::move(request), std::move(callbacks));
  if (handle.ok()) sink_->cancel()->Set(*std::move(handle));
  return handle.status();
}

bool Generation::OnToken(const SampledToken& token) {
  if (recent_ != nullptr && token.sample == 0) recent_->Add(token.id);
  assert(texts_.empty() || token.sample < texts_.size());
  TextStream* const text = texts_.empty() ? nullptr : texts_[token.sample].get();
  std::string said = text == nullptr ? "" : text->Push(token.id);
  if (searches_) {
    found_.push_back(token);
    found_text_ += said;
  } else if (!sink_->OnTokens({{&token, 1}, sampling_.reports(), std::move(said), token.sample})) {
    return false;
  }
  return text == nullptr || !text->stopped();
}

void Generation::OnFinished(const FinishedInfo& info) {
  if (on_finished_) on_finished_(info);
  sink_->OnComputed(info);
  for (size_t i = 0; i < texts_.size(); ++i) {
    std::string rest = texts_[i]->Finish();
    if (searches_) {
      found_text_ += rest;
    } else if (!rest.empty()) {
      sink_->OnTokens({{}, false, std::move(rest), static_cast<uint32_t>(i)});
    }
  }
  if (!found_.empty() || !found_text_.empty()) {
    sink_->OnTokens({found_, sampling_.reports(), std::move(found_text_), 0});
  }
  absl::MutexLock lock(&mutex_);
  end_ = info;
  for (size_t i = 0; i < texts_.size() && i < end_->samples.size(); ++i) {
    end_->samples[i].stop_string = texts_[i]->stop_string();
  }
  if (writes_ && !written_.has_value() && plan_wait_ > absl::ZeroDuration()) {
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(absl::ToChronoTime(absl::Now() + plan_wait_), [weak = weak_from_this()](bool) {
      const auto self = weak.lock();
      if (self == nullptr) return;
      absl::MutexLock end_lock(&self->mutex_);
      self->DeliverEnd();
    });
    return;
  }
  DeliverEnd();
}

void Generation::OnPlanned(uint32_t written) {
  absl::MutexLock lock(&mutex_);
  if (written_.has_value()) return;
  written_ = written;
  engine_->NoteCacheWrites(written);
  DeliverEnd();
}

void Generation::DeliverEnd() {
  mutex_.AssertHeld();
  if (!end_.has_value()) return;
  if (!written_.has_value()) written_ = 0;  // a plan that arrives later is ignored
  assert(prompt_tokens_ > 0);
  sink_->OnFinished(*std::exchange(end_, std::nullopt), prompt_tokens_, *written_);
  if (wait_published_ && writes_) return;
  if (wait_published_) {
    PublishOutcome nothing;
    nothing.note = "the request's cache mode does not publish";
    sink_->OnPublished(nothing);
  }
  sink_->OnEnd(absl::OkStatus());
}

void Generation::OnPublished(const PublishOutcome& outcome) {
  if (!wait_published_) return;
  absl::MutexLock lock(&mutex_);
  sink_->OnPublished(outcome);
  sink_->OnEnd(absl::OkStatus());
}

// PrefillRun: the requests of the engine that one Prefill request needs.
//
// If a boundary was restored and the store does not have one below it, an extra request computes
// the lower boundary and ends there. If such a request fails, the outcome's note lists the missing
// boundaries. Thread safety: called by the engine's threads. Ownership: the callbacks of its
// requests keep it.
class PrefillRun : public std::enable_shared_from_this<PrefillRun> {
 public:
  PrefillRun(Engine* engine, EngineRequest first, absl::Duration progress_pause,
             std::shared_ptr<GenerationSink> sink)
      : engine_(engine),
        first_(std::move(first)),
        progress_pause_(progress_pause),
        sink_(std::move(sink)) {
    answer_.mutable_boundaries()->Add(first_.asked.begin(), first_.asked.end());
  }

  // Submits a request to the engine: first_, or later an extra request.
  absl::Status Submit(EngineRequest request);
  const EngineRequest& first() const { return first_; }

 private:
  void OnStarted(const StartedInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnProgress(uint32_t ready_tokens) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnError(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnPublished(const PublishOutcome& outcome) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sets `next` to the next request. Returns false if nothing is left to compute.
  bool TakeNext(const PublishOutcome& outcome, EngineRequest* next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddNote(absl::string_view note) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Answer() ABSL_LOCKS_EXCLUDED(mutex_);

  Engine* const engine_;
  const EngineRequest first_;
  const absl::Duration progress_pause_;
  const std::shared_ptr<GenerationSink> sink_;
  const absl::Time start_ = absl::Now();
  absl::Time next_progress_;  // used only by the engine's thread

  absl::Mutex mutex_;
  v1::PrefillResponse answer_ ABSL_GUARDED_BY(mutex_);
  PublishOutcome published_ ABSL_GUARDED_BY(mutex_);  // outcome of all requests up to now
  uint32_t written_ ABSL_GUARDED_BY(mutex_) = 0;      // tokens that the current request has written
  // boundaries, descending; the last is computed next
  std::vector<uint32_t> missing_ ABSL_GUARDED_BY(mutex_);
  uint32_t computing_ ABSL_GUARDED_BY(mutex_) = 0;  // boundary that the current request computes
  bool is_first_ ABSL_GUARDED_BY(mutex_) = true;
  uint32_t most_ready_ ABSL_GUARDED_BY(mutex_) = 0;  // largest reported number of ready tokens
};

absl::Status PrefillRun::Submit(EngineRequest request) {
  const auto self = shared_from_this();
  EngineCallbacks callbacks;
  callbacks.on_started = [self](const StartedInfo& info) { self->OnStarted(info); };
  if (progress_pause_ != absl::InfiniteDuration()) {
    callbacks.on_progress = [self](uint32_t ready_tokens) { self->OnProgress(ready_tokens); };
  }
  // A prefill may end before the end of its prompt. Only this event has the number of computed
  // tokens.
  callbacks.on_finished = [self](const FinishedInfo& info) {
    self->sink_->OnComputed(info);
    absl::MutexLock lock(&self->mutex_);
    self->answer_.set_computed_tokens(self->answer_.computed_tokens() + info.computed_tokens);
  };
  callbacks.on_error = [self](const absl::Status& status) { self->OnError(status); };
  callbacks.on_planned = [self](uint32_t written) {
    absl::MutexLock lock(&self->mutex_);
    self->written_ = written;
  };
  callbacks.on_published = [self](const PublishOutcome& outcome) { self->OnPublished(outcome); };
  auto handle = engine_->Submit(std::move(request), std::move(callbacks));
  if (handle.ok()) sink_->cancel()->Set(*std::move(handle));
  return handle.status();
}

void PrefillRun::OnStarted(const StartedInfo& info) {
  {
    absl::MutexLock lock(&mutex_);
    if (!is_first_) return;
    answer_.set_prompt_tokens(info.prompt_tokens);
    answer_.set_cached_tokens(info.cached_tokens);
    answer_.set_source_tier(ToProto(info.source_tier));
  }
  sink_->OnStarted(info, std::nullopt);
}

void PrefillRun::OnProgress(uint32_t ready_tokens) {
  if (!IsProgressDue(progress_pause_, &next_progress_)) return;
  v1::PrefillResponse message;
  {
    absl::MutexLock lock(&mutex_);
    message.set_prompt_tokens(answer_.prompt_tokens());
    message.set_cached_tokens(answer_.cached_tokens());
    most_ready_ = std::max(most_ready_, ready_tokens);
    message.mutable_progress()->set_ready_tokens(most_ready_);
  }
  sink_->OnPrefill(message);
}

// The outcome of the first request shows which boundaries the store does not have below the
// restored boundary.
bool PrefillRun::TakeNext(const PublishOutcome& outcome, EngineRequest* next) {
  answer_.set_cache_write_tokens(answer_.cache_write_tokens() + std::exchange(written_, 0));
  const auto has = [&outcome](uint32_t boundary) {
    return std::binary_search(outcome.boundaries.begin(), outcome.boundaries.end(), boundary);
  };
  if (is_first_) {
    published_ = outcome;
    for (const uint32_t boundary : first_.asked) {
      const bool is_below = boundary < answer_.cached_tokens() && !outcome.boundaries.empty();
      if (is_below && !has(boundary)) missing_.insert(missing_.begin(), boundary);
    }
    // the note is only about boundaries in missing_
    if (!missing_.empty()) published_.note.clear();
  } else {
    if (has(computing_)) published_.durable = std::min(published_.durable, outcome.durable);
    AddNote(outcome.note);
  }
  is_first_ = false;
  if (missing_.empty()) return false;
  computing_ = missing_.back();
  missing_.pop_back();
  assert(computing_ < first_.token_ids.size());
  *next = first_;
  next->asked.clear();
  next->token_ids.resize(computing_);
  auto& cuts = next->breakpoints;
  cuts.erase(std::upper_bound(cuts.begin(), cuts.end(), computing_), cuts.end());
  return true;
}

void PrefillRun::AddNote(absl::string_view note) {
  if (absl::StrContains(published_.note, note)) return;
  absl::StrAppend(&published_.note, published_.note.empty() ? "" : "; ", note);
}

void PrefillRun::OnPublished(const PublishOutcome& outcome) {
  EngineRequest next;
  {
    absl::ReleasableMutexLock lock(&mutex_);
    if (!TakeNext(outcome, &next)) {
      lock.Release();
      return Answer();
    }
  }
  if (const absl::Status begun = Submit(std::move(next)); !begun.ok()) OnError(begun);
}

// Even if a later request fails, the boundaries of the first request are published.
void PrefillRun::OnError(const absl::Status& status) {
  {
    absl::ReleasableMutexLock lock(&mutex_);
    if (is_first_ || absl::IsCancelled(status) || absl::IsDeadlineExceeded(status)) {
      lock.Release();
      return sink_->OnEnd(status);
    }
    AddNote(absl::StrCat(missing_.size() + 1, " boundaries not kept, starting at token ",
                         computing_, ": ", status.message()));
  }
  Answer();
}

void PrefillRun::Answer() {
  absl::MutexLock lock(&mutex_);
  OutcomeToProto(published_, answer_.mutable_published());
  engine_->NoteCacheWrites(answer_.cache_write_tokens());
  answer_.set_total_ms(absl::ToDoubleMilliseconds(absl::Now() - start_));
  sink_->OnPrefill(answer_);
  sink_->OnEnd(absl::OkStatus());
}

// Returns an error if no caller waits for the answer any more.
absl::Status CheckAwaited(GenerationSink* sink, absl::Time deadline) {
  if (sink->cancel()->is_cancelled()) return absl::CancelledError("the caller cancelled");
  if (absl::Now() < deadline) return absl::OkStatus();
  return absl::DeadlineExceededError("the deadline passed");
}

// Advances the request's grammar past the tokens that were drawn before the request.
absl::Status AcceptDrawn(GenerationSink* sink, EngineRequest* request) {
  const absl::Span<const int32_t> prompt = request->token_ids;
  assert(request->grammar != nullptr);
  const size_t drawn = std::min<uint64_t>(prompt.size(), request->first_draw);
  if (drawn == 0) return absl::OkStatus();
  auto continued = ContinueGrammar(*request->grammar, prompt.last(drawn),
                                   [&] { return CheckAwaited(sink, request->deadline); });
  if (absl::IsInvalidArgument(continued.status())) {
    return absl::InvalidArgumentError(absl::StrCat("first_draw: ", continued.status().message()));
  }
  if (!continued.ok()) return continued.status();
  request->grammar = *std::move(continued);
  return absl::OkStatus();
}

}  // namespace

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
          absl::StrCat("\"", word, "\" must be temperature=NUMBER, top_k=NUMBER or top_p=NUMBER"));
    }
  }
  checked.temperature = made.temperature.value_or(0);
  checked.top_p = made.top_p.value_or(0);
  if (absl::Status status = checked.Validate(); !status.ok()) return status;
  return made;
}

Generator::Generator(Engine* engine, GeneratorOptions options)
    : engine_(engine),
      options_(std::move(options)),
      grammars_(options_.tokenizer == nullptr
                    ? nullptr
                    : std::make_unique<GrammarEngine>(options_.tokenizer,
                                                      engine->config().eos_token_ids,
                                                      engine->config().vocab_size)) {}

absl::StatusOr<std::shared_ptr<const Grammar>> Generator::CompileGrammar(
    const v1::Grammar& grammar) {
  if (grammars_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("grammar: ", options_.why_no_tokenizer, ", so the answer has no text"));
  }
  return grammars_->Compile(GrammarFromProto(grammar));
}

SamplingParams Generator::open_sampling() const {
  const GenerationDefaults& model =
      options_.generation_config ? engine_->config().generation : GenerationDefaults();
  const DefaultSampling& set = options_.default_sampling;
  SamplingParams open;
  open.temperature = set.temperature.value_or(static_cast<float>(model.temperature));
  open.top_k = set.top_k.value_or(static_cast<uint32_t>(model.top_k));
  open.top_p = set.top_p.value_or(static_cast<float>(model.top_p));
  return open;
}

absl::StatusOr<Prompt> Generator::MakePrompt(const v1::PromptInput& input, PromptPurpose purpose,
                                             std::function<bool()> stopped, bool is_count) const {
  if (absl::Status status = CheckMessageBytes(input.ByteSizeLong()); !status.ok()) return status;
  absl::StatusOr<PromptSource> source = SourceFromProto(input);
  if (!source.ok()) return source.status();
  if (auto* chat = std::get_if<ChatInput>(&source->input)) chat->strict |= options_.strict_chats;
  const ModelConfig& config = engine_->config();
  const auto context_tokens = static_cast<uint32_t>(config.max_position_embeddings);
  const PromptLimits limits{static_cast<uint32_t>(config.vocab_size),
                            is_count ? std::numeric_limits<uint32_t>::max() : context_tokens,
                            std::move(stopped),
                            options_.why_no_tokenizer,
                            options_.why_no_chats,
                            options_.chat_template};
  return BuildPrompt(*source, purpose, options_.tokenizer, limits);
}

absl::Status Generator::Explain(const GenerationTerms& terms, const v1::PromptInput& input,
                                PromptPurpose purpose, const std::string& adapter,
                                std::function<bool()> stopped, ExplainCallback done) const {
  if (options_.explain == nullptr) {
    return absl::FailedPreconditionError("explain: the worker runs without a store");
  }
  absl::StatusOr<Prompt> prompt = MakePrompt(input, purpose, std::move(stopped));
  if (!prompt.ok()) return prompt.status();
  PrefixRequest prefix;
  prefix.token_ids.assign(prompt->token_ids.begin(), prompt->token_ids.end());
  prefix.cuts = std::move(prompt->breakpoints);
  prefix.tenant = terms.tenant;
  prefix.adapter = adapter;
  if (absl::Status known = engine_->CheckAdapter(adapter); !known.ok()) return known;
  options_.explain(std::move(prefix), terms.deadline, std::move(done));
  return absl::OkStatus();
}

absl::Status Generator::AddPrompt(const GenerationTerms& terms, const v1::PromptInput& input,
                                  PromptPurpose purpose, GenerationSink* sink,
                                  EngineRequest* request) const {
  absl::StatusOr<Prompt> prompt =
      MakePrompt(input, purpose, [sink] { return sink->cancel()->is_cancelled(); });
  if (!prompt.ok()) return prompt.status();
  request->token_ids = std::move(prompt->token_ids);
  request->breakpoints = std::move(prompt->breakpoints);
  request->asked = std::move(prompt->declared);
  request->tenant = terms.tenant;
  request->request_id = terms.request_id;
  request->traceparent = terms.traceparent;
  request->deadline = terms.deadline;
  return absl::OkStatus();
}

// Makes the engine's request, except its prompt and terms.
absl::StatusOr<EngineRequest> Generator::RequestFrom(const v1::GenerateRequest& request) const {
  const absl::StatusOr<SamplingParams> sampling =
      SamplingFromProto(request.sampling(), open_sampling());
  if (!sampling.ok()) return sampling.status();
  const absl::StatusOr<BeamOptions> search = SearchFromProto(request);
  if (!search.ok()) return search.status();
  const absl::StatusOr<CacheMode> cache = FromProto(request.cache());
  if (!cache.ok()) return cache.status();
  const absl::StatusOr<Durability> durability = FromProto(request.durability());
  if (!durability.ok()) return durability.status();
  if (absl::Status status = ValidateStopStrings({request.stop().begin(), request.stop().end()});
      !status.ok()) {
    return status;
  }
  if (!request.stop().empty() && options_.tokenizer == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("stop: ", options_.why_no_tokenizer, ", so the answer has no text to search"));
  }
  if (request.max_new_tokens() == 0) {
    return absl::InvalidArgumentError("max_new_tokens: must be at least 1; got 0");
  }
  if (request.first_draw() > kMaxDraws - request.max_new_tokens()) {
    return absl::InvalidArgumentError(
        absl::StrCat("first_draw: must be at most ", kMaxDraws, " minus max_new_tokens (",
                     request.max_new_tokens(), "); got ", request.first_draw()));
  }
  EngineRequest made;
  made.sampling = *sampling;
  made.first_draw = request.first_draw();
  made.max_new_tokens = request.max_new_tokens();
  made.samples = request.n() == 0 ? 1 : request.n();
  made.search = *search;
  made.adapter = request.adapter();
  made.ignore_eos = request.ignore_eos();
  made.hash_logits = request.hash_logits();
  made.cache = *cache;
  made.requested_kv = {request.kv_cache(), request.kv_quantization()};
  if (request.has_speculate()) made.speculate = request.speculate();
  made.durability = *durability;
  made.ttl_s = request.ttl_s();
  made.hint = HintFromProto(request);
  if (absl::Status kv = engine_->Complete(&made); !kv.ok()) return kv;
  return made;
}

absl::Status Generator::Generate(const GenerationTerms& terms, const v1::GenerateRequest& request,
                                 std::shared_ptr<GenerationSink> sink) {
  absl::StatusOr<EngineRequest> made = RequestFrom(request);
  if (!made.ok()) return made.status();
  const absl::Status prompt =
      AddPrompt(terms, request.prompt(), PromptPurpose::kGenerate, sink.get(), &*made);
  if (!prompt.ok()) return prompt;
  const auto context_tokens = static_cast<size_t>(engine_->config().max_position_embeddings);
  if (request.fits_context() && made->token_ids.size() < context_tokens) {
    const auto left = static_cast<uint32_t>(context_tokens - made->token_ids.size());
    made->max_new_tokens = std::min(made->max_new_tokens, left);
  }
  if (request.has_grammar()) {
    // A compilation cannot be interrupted.
    absl::Status awaited = CheckAwaited(sink.get(), made->deadline);
    if (!awaited.ok()) return awaited;
    auto grammar = CompileGrammar(request.grammar());
    if (!grammar.ok()) return grammar.status();
    made->grammar = *std::move(grammar);
    if (absl::Status drawn = AcceptDrawn(sink.get(), &*made); !drawn.ok()) return drawn;
  }
  auto recent = recent_.Begin(*made);
  return std::make_shared<Generation>(engine_, options_, request, std::move(sink))
      ->Submit(*std::move(made), std::move(recent));
}

absl::Status Generator::Prefill(const GenerationTerms& terms, const v1::PrefillRequest& request,
                                std::shared_ptr<GenerationSink> sink) {
  const absl::StatusOr<Durability> durability = FromProto(request.durability());
  if (!durability.ok()) return durability.status();
  EngineRequest made;
  made.durability = *durability;
  made.ttl_s = request.ttl_s();
  made.hint = HintFromProto(request);
  made.adapter = request.adapter();
  const absl::Status prompt =
      AddPrompt(terms, request.prompt(), PromptPurpose::kPrefill, sink.get(), &made);
  if (!prompt.ok()) return prompt;
  // The boundaries at which the request would keep restore points if nothing were cached.
  made.asked =
      KeptBoundaries(made.token_ids.size(), made.breakpoints,
                     /*matched_tokens=*/0, /*restored_tokens=*/0, engine_->layout().chunk_tokens);
  const absl::Duration pause =
      request.report_progress() ? options_.progress_pause : absl::InfiniteDuration();
  const auto run = std::make_shared<PrefillRun>(engine_, std::move(made), pause, std::move(sink));
  return run->Submit(run->first());
}

}  // namespace hearth
