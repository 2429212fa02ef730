#include "services/inference/calls/prefill_call.h"

#include <cassert>
#include <utility>

#include "absl/time/clock.h"
#include "proto/caller_gone.h"
#include "proto/restore_rule.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/rpc/slice_wire.h"
#include "services/rpc/status_conversion.h"

namespace hearth {

void PrefillCall::Start(FairPool* pool, const std::string& tenant, uint64_t bytes, MakeRequest make,
                        Engine* engine) {
  assert(self_ == nullptr);
  self_ = shared_from_this();
  {
    absl::MutexLock lock(&mutex_);
    preparing_ = true;
  }
  PrepareRequest(pool, tenant, bytes, std::move(make),
                 [self = self_, engine](absl::StatusOr<EngineRequest> prepared) {
                   self->Prepared(engine, std::move(prepared));
                 });
}

void PrefillCall::Prepared(Engine* engine, absl::StatusOr<EngineRequest> prepared) {
  if (prepared.ok()) {
    Submit(engine, *std::move(prepared));
  } else {
    End(prepared.status());
  }
  absl::MutexLock lock(&mutex_);
  preparing_ = false;
  FinishOnce();
}

void PrefillCall::Submit(Engine* engine, EngineRequest request) {
  {
    absl::MutexLock lock(&mutex_);
    // The boundaries that a first, uncached run of the request keeps.
    for (const uint32_t boundary :
         KeptBoundaries(request.token_ids.size(), request.breakpoints, /*matched_tokens=*/0,
                        /*restored_tokens=*/0, engine->layout().chunk_tokens)) {
      answer_.add_boundaries(boundary);
    }
  }
  const std::shared_ptr<PrefillCall> self = shared_from_this();
  EngineCallbacks callbacks;
  callbacks.on_started = [self](const StartedInfo& info) {
    absl::MutexLock lock(&self->mutex_);
    if (self->ended_) return;
    self->answer_.set_prompt_tokens(info.prompt_tokens);
    self->answer_.set_cached_tokens(info.cached_tokens);
    if (self->call_ != nullptr) NoteStart(info, self->call_->note());
    v1::Started started;
    StartedToProto(info, &started);
    self->answer_.set_source_tier(started.source_tier());
  };
  // A prefill ends at its last boundary worth keeping: only the end says how far it went.
  callbacks.on_finished = [self](const FinishedInfo& info) {
    absl::MutexLock lock(&self->mutex_);
    if (!self->ended_) self->answer_.set_computed_tokens(info.computed_tokens);
  };
  callbacks.on_error = [self](const absl::Status& status) { self->End(status); };
  callbacks.on_published = [self](const PublishOutcome& outcome) {
    {
      absl::MutexLock lock(&self->mutex_);
      if (self->ended_) return;
      OutcomeToProto(outcome, self->answer_.mutable_published());
      self->answer_.set_total_ms(absl::ToDoubleMilliseconds(absl::Now() - self->start_));
    }
    self->End(absl::OkStatus());
  };
  auto handle = engine->Submit(std::move(request), std::move(callbacks));
  if (!handle.ok()) return End(handle.status());
  absl::MutexLock lock(&mutex_);
  handle_ = *std::move(handle);
  if (cancelled_) handle_->Cancel();
}

void PrefillCall::End(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  if (ended_) return;
  ended_ = true;
  status_ = std::move(status);
  FinishOnce();
}

void PrefillCall::FinishOnce() {
  mutex_.AssertHeld();
  if (!ended_ || preparing_ || finished_) return;
  finished_ = true;
  if (status_.ok()) *response_ = MessageBytes(answer_);
  if (call_ != nullptr) status_ = call_->Finish(std::move(status_));
  Finish(ToGrpcStatus(status_, context_));
}

void PrefillCall::OnCancel() {
  std::shared_ptr<EngineRequestHandle> handle;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    handle = handle_;
  }
  if (handle != nullptr) handle->Cancel();
  End(CallerGone());
}

void PrefillCall::OnDone() {
  // The call is done, though the engine may hold this object until a publish ends.
  call_.reset();
  const std::shared_ptr<PrefillCall> last = std::move(self_);  // maybe the last reference
}

}  // namespace hearth
