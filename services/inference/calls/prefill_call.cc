#include "services/inference/calls/prefill_call.h"

#include <utility>

#include "proto/restore_rule.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/rpc/slice_wire.h"

namespace hearth {

void PrefillCall::Start(FairPool* pool, const std::string& tenant, uint64_t bytes, Make make,
                        Engine* engine) {
  const std::shared_ptr<PrefillCall> self = Shared(this);
  Follow(
      pool, tenant, bytes, [self, make = std::move(make)] { return make(&self->progress_pause_); },
      engine);
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
    self->answer_.set_computed_tokens(info.computed_tokens);
  };
  callbacks.on_error = [self](const absl::Status& status) { self->End(status); };
  callbacks.on_published = [self](const PublishOutcome& outcome) { self->OnPublished(outcome); };
  return callbacks;
}

absl::StatusOr<std::shared_ptr<EngineRequestHandle>> PrefillCall::Submit(Engine* engine,
                                                                         EngineRequest request) {
  {
    absl::MutexLock lock(&mutex_);
    // The boundaries that a first, uncached run of the request keeps.
    for (const uint32_t boundary :
         KeptBoundaries(request.token_ids.size(), request.breakpoints, /*matched_tokens=*/0,
                        /*restored_tokens=*/0, engine->layout().chunk_tokens)) {
      answer_.add_boundaries(boundary);
    }
  }
  return engine->Submit(std::move(request), Callbacks());
}

void PrefillCall::OnStarted(const StartedInfo& info) {
  absl::MutexLock lock(&mutex_);
  if (ended()) return;
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
  message.mutable_progress()->set_ready_tokens(ready_tokens);
  PushLocked(MessageBytes(message));
  WriteNext();
}

void PrefillCall::OnPublished(const PublishOutcome& outcome) {
  {
    absl::MutexLock lock(&mutex_);
    OutcomeToProto(outcome, answer_.mutable_published());
    answer_.set_total_ms(absl::ToDoubleMilliseconds(absl::Now() - start_));
    PushLocked(MessageBytes(answer_));
    WriteNext();
  }
  End(absl::OkStatus());
}

}  // namespace hearth
