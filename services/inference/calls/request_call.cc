#include "services/inference/calls/request_call.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/restore_rule.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/rpc/slice_wire.h"

namespace hearth {

void RequestCall::Follow(Engine* engine, FairPool* pool, const std::string& tenant, uint64_t bytes,
                         Make make) {
  engine_ = engine;
  pool_ = pool;
  Delegate([&] {
    return pool->SubmitRequest(tenant, bytes, [self = Shared(this), make = std::move(make)] {
      absl::StatusOr<EngineRequest> made = make();
      const absl::Status begun = made.ok() ? self->Begin(*std::move(made)) : made.status();
      if (!begun.ok()) self->End(begun);
      absl::MutexLock lock(&self->mutex_);
      self->Release();
    });
  });
}

absl::Status RequestCall::Begin(EngineRequest request) {
  const auto handle = Submit(std::move(request));
  if (!handle.ok()) return handle.status();
  absl::MutexLock lock(&mutex_);
  handle_ = *handle;
  if (cancelled_) handle_->Cancel();
  return absl::OkStatus();
}

void RequestCall::OnGone() {
  std::shared_ptr<EngineRequestHandle> handle;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    handle = handle_;
  }
  if (handle != nullptr) handle->Cancel();
  StreamCall::OnGone();
}

absl::StatusOr<std::shared_ptr<EngineRequestHandle>> GenerateCall::Submit(EngineRequest request) {
  prompt_tokens_ = static_cast<uint32_t>(request.token_ids.size());
  together_ = request.searches();
  pace_.emplace(options_.progress_pause);
  if (options_.tokenizer != nullptr && request.samples <= kMaxSamples) {
    for (uint32_t i = 0; i < request.samples; ++i) {
      texts_.push_back(std::make_unique<TextStream>(options_.tokenizer, options_.stop));
    }
  }
  const auto self = Shared(this);
  EngineCallbacks callbacks;
  callbacks.on_started = [self](const StartedInfo& info) { self->OnStarted(info); };
  if (pace_->is_wanted()) {
    callbacks.on_progress = [self](uint32_t ready_tokens) { self->OnProgress(ready_tokens); };
  }
  callbacks.on_token = [self](const SampledToken& token) { return self->OnToken(token); };
  callbacks.on_finished = [self](const FinishedInfo& info) { self->OnFinished(info); };
  callbacks.on_error = [self](const absl::Status& status) { self->End(status); };
  callbacks.on_published = [self](const PublishOutcome& outcome) { self->OnPublished(outcome); };
  callbacks.on_planned = [self](uint32_t written) { self->OnPlanned(written); };
  callbacks.on_prompt = [self](absl::Span<const SampledToken> tokens) { self->OnPrompt(tokens); };
  // Whether an answer of these tokens ends with a stop string.
  callbacks.stops = [self](absl::Span<const int32_t> ids) {
    const GenerateOptions& options = self->options_;
    return options.tokenizer != nullptr &&
           EndsWithStopString(*options.tokenizer, options.stop, ids);
  };
  return engine()->Submit(std::move(request), std::move(callbacks));
}

void GenerateCall::OnStarted(const StartedInfo& info) {
  {
    absl::MutexLock lock(&mutex_);
    if (!ended()) NoteStart(info, call()->note());
  }
  v1::GenerateResponse message;
  StartedToProto(info, message.mutable_started());
  const SamplingParams& sampling = options_.sampling;
  if (sampling.temperature > 0) message.mutable_started()->set_seed(sampling.seed);
  Send(message);
}

void GenerateCall::OnProgress(uint32_t ready_tokens) {
  if (!pace_->IsDue()) return;
  v1::GenerateResponse message;
  message.mutable_progress()->set_ready_tokens(ready_tokens);
  Send(message);
}

void GenerateCall::OnPrompt(absl::Span<const SampledToken> tokens) {
  v1::GenerateResponse message;
  PromptToProto(tokens, !std::exchange(tells_prompt_, true), message.mutable_prompt());
  Send(message);
}

bool GenerateCall::OnToken(const SampledToken& token) {
  if (options_.recent != nullptr && token.sample == 0) options_.recent->Add(token.id);
  v1::GenerateResponse one;
  v1::GenerateResponse& message = together_ ? answer_ : one;
  TokenToProto(token, options_.sampling, message.mutable_token());
  assert(texts_.empty() || token.sample < texts_.size());
  TextStream* text = texts_.empty() ? nullptr : texts_[token.sample].get();
  if (text != nullptr) message.mutable_token()->mutable_text()->append(text->Push(token.id));
  if (!together_ && !Send(message)) return false;
  return text == nullptr || !text->stopped();
}

void GenerateCall::OnFinished(const FinishedInfo& info) {
  if (options_.on_finished) options_.on_finished(info);
  for (size_t i = 0; i < texts_.size(); ++i) {
    std::string rest = texts_[i]->Finish();
    if (rest.empty()) continue;
    if (together_) {
      answer_.mutable_token()->mutable_text()->append(rest);
      continue;
    }
    v1::GenerateResponse message;
    message.mutable_token()->set_text(std::move(rest));
    message.mutable_token()->set_sample(static_cast<uint32_t>(i));
    Send(message);
  }
  if (answer_.has_token()) Send(answer_);
  {
    absl::MutexLock lock(&mutex_);
    end_.emplace();
    FinishedToProto(info, prompt_tokens_, end_->mutable_finished());
    if (options_.report_writes && options_.writes && !written_.has_value() && !ended()) {
      alarm_ = std::make_unique<grpc::Alarm>();
      alarm_->Set(absl::ToChronoTime(absl::Now() + options_.plan_wait), [weak = Weak(this)](bool) {
        if (const auto self = weak.lock()) self->SendEnd();
      });
      return;
    }
  }
  SendEnd();
}

void GenerateCall::OnPlanned(uint32_t written) {
  {
    absl::MutexLock lock(&mutex_);
    if (!written_.has_value()) written_ = written;
  }
  SendEnd();
}

void GenerateCall::SendEnd() {
  {
    absl::MutexLock lock(&mutex_);
    if (!end_.has_value() || ended()) return;
    end_->mutable_finished()->set_cache_write_tokens(written_.value_or(0));
    engine()->NoteCacheWrites(written_.value_or(0));
    PushLocked(MessageBytes(*end_));
    WriteNext();
    end_.reset();
  }
  if (!options_.wait_published) return End(absl::OkStatus());
  if (options_.writes) return;
  PublishOutcome nothing;
  nothing.note = "the request's cache mode does not write";
  OnPublished(nothing);
}

void GenerateCall::OnPublished(const PublishOutcome& outcome) {
  if (!options_.wait_published) return;
  v1::GenerateResponse message;
  OutcomeToProto(outcome, message.mutable_published());
  Send(message);
  End(absl::OkStatus());
}

bool GenerateCall::Send(const v1::GenerateResponse& message) {
  grpc::ByteBuffer bytes = MessageBytes(message);
  {
    absl::MutexLock lock(&mutex_);
    if (!ended()) call()->note()->generated += static_cast<uint64_t>(message.token().ids_size());
    PushLocked(std::move(bytes));
    WriteNext();
    const bool may_wait = message.token().ids_size() == 0 && !message.has_prompt();
    if (may_wait || ready_bytes() <= kMaxWaitingBytes) return true;
  }
  End(absl::ResourceExhaustedError(
      absl::StrCat("the caller does not read: ", kMaxWaitingBytes, " bytes wait to be sent")));
  return false;
}

EngineCallbacks PrefillCall::Callbacks() {
  const std::shared_ptr<PrefillCall> self = Shared(this);
  EngineCallbacks callbacks;
  callbacks.on_started = [self](const StartedInfo& info) { self->OnStarted(info); };
  pace_.emplace(progress_pause_);
  if (pace_->is_wanted()) {
    callbacks.on_progress = [self](uint32_t ready_tokens) { self->OnProgress(ready_tokens); };
  }
  // A prefill ends at its last boundary worth keeping: only the end says how far it went.
  callbacks.on_finished = [self](const FinishedInfo& info) {
    absl::MutexLock lock(&self->mutex_);
    self->answer_.set_computed_tokens(self->answer_.computed_tokens() + info.computed_tokens);
  };
  callbacks.on_error = [self](const absl::Status& status) { self->OnError(status); };
  callbacks.on_planned = [self](uint32_t written) {
    absl::MutexLock lock(&self->mutex_);
    self->written_ = written;
  };
  callbacks.on_published = [self](const PublishOutcome& outcome) { self->OnPublished(outcome); };
  return callbacks;
}

absl::StatusOr<std::shared_ptr<EngineRequestHandle>> PrefillCall::Submit(EngineRequest request) {
  if (!first_.has_value()) {
    // The boundaries that a first, uncached run of the request keeps.
    request.asked = KeptBoundaries(request.token_ids.size(), request.breakpoints,
                                   /*matched_tokens=*/0, /*restored_tokens=*/0,
                                   engine()->layout().chunk_tokens);
    first_ = request;
    absl::MutexLock lock(&mutex_);
    answer_.mutable_boundaries()->Add(request.asked.begin(), request.asked.end());
  }
  return engine()->Submit(std::move(request), Callbacks());
}

void PrefillCall::OnStarted(const StartedInfo& info) {
  absl::MutexLock lock(&mutex_);
  if (ended() || !is_first_) return;
  answer_.set_prompt_tokens(info.prompt_tokens);
  answer_.set_cached_tokens(info.cached_tokens);
  NoteStart(info, call()->note());
  v1::Started started;
  StartedToProto(info, &started);
  answer_.set_source_tier(started.source_tier());
}

void PrefillCall::OnProgress(uint32_t ready_tokens) {
  if (!pace_->IsDue()) return;
  absl::MutexLock lock(&mutex_);
  v1::PrefillResponse message;
  message.set_prompt_tokens(answer_.prompt_tokens());
  message.set_cached_tokens(answer_.cached_tokens());
  most_ready_ = std::max(most_ready_, ready_tokens);
  message.mutable_progress()->set_ready_tokens(most_ready_);
  PushLocked(MessageBytes(message));
  WriteNext();
}

// A first request says what the store lacks below the boundary that it restored, if it has a store.
bool PrefillCall::TakeNext(const PublishOutcome& outcome, EngineRequest* next) {
  answer_.set_cache_write_tokens(answer_.cache_write_tokens() + std::exchange(written_, 0));
  const auto has = [&outcome](uint32_t boundary) {
    return std::binary_search(outcome.boundaries.begin(), outcome.boundaries.end(), boundary);
  };
  if (is_first_) {
    published_ = outcome;
    for (const uint32_t boundary : first_->asked) {
      const bool is_below = boundary < answer_.cached_tokens() && !outcome.boundaries.empty();
      if (is_below && !has(boundary)) missing_.insert(missing_.begin(), boundary);
    }
    if (!missing_.empty()) published_.note.clear();  // of them
  } else {
    if (has(computing_)) published_.durable = std::min(published_.durable, outcome.durable);
    AddNote(outcome.note);
  }
  is_first_ = false;
  if (missing_.empty()) return false;
  computing_ = missing_.back();
  missing_.pop_back();
  *next = *first_;
  next->asked.clear();
  next->token_ids.resize(computing_);
  auto& cuts = next->breakpoints;
  cuts.erase(std::upper_bound(cuts.begin(), cuts.end(), computing_), cuts.end());
  return true;
}

void PrefillCall::AddNote(absl::string_view note) {
  if (absl::StrContains(published_.note, note)) return;
  absl::StrAppend(&published_.note, published_.note.empty() ? "" : "; ", note);
}

void PrefillCall::OnPublished(const PublishOutcome& outcome) {
  EngineRequest next;
  {
    absl::ReleasableMutexLock lock(&mutex_);
    if (!TakeNext(outcome, &next)) {
      lock.Release();
      return Answer();
    }
  }
  if (const absl::Status begun = Begin(std::move(next)); !begun.ok()) OnError(begun);
}

// What the first request kept is kept, whatever becomes of those that follow it.
void PrefillCall::OnError(const absl::Status& status) {
  {
    absl::ReleasableMutexLock lock(&mutex_);
    if (is_first_ || absl::IsCancelled(status) || absl::IsDeadlineExceeded(status)) {
      lock.Release();
      return End(status);
    }
    AddNote(absl::StrCat(missing_.size() + 1, " boundaries not kept, from ", computing_,
                         " on: ", status.message()));
  }
  Answer();
}

void PrefillCall::Answer() {
  {
    absl::MutexLock lock(&mutex_);
    OutcomeToProto(published_, answer_.mutable_published());
    engine()->NoteCacheWrites(answer_.cache_write_tokens());
    answer_.set_total_ms(absl::ToDoubleMilliseconds(absl::Now() - start_));
    PushLocked(MessageBytes(answer_));
    WriteNext();
  }
  End(absl::OkStatus());
}

}  // namespace hearth
