#include "services/inference/calls/prefill_run.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/restore_rule.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {
namespace {

// Called by the engine's threads; kept by the callbacks of its requests.
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

  // Submits first_, or one that follows it.
  absl::Status Submit(EngineRequest request);
  const EngineRequest& first() const { return first_; }

 private:
  void OnStarted(const StartedInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnProgress(uint32_t ready_tokens) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnError(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnPublished(const PublishOutcome& outcome) ABSL_LOCKS_EXCLUDED(mutex_);
  // What is left to compute; false: nothing.
  bool TakeNext(const PublishOutcome& outcome, EngineRequest* next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddNote(absl::string_view note) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Answer() ABSL_LOCKS_EXCLUDED(mutex_);

  Engine* const engine_;
  const EngineRequest first_;
  const absl::Duration progress_pause_;
  const std::shared_ptr<GenerationSink> sink_;
  const absl::Time start_ = absl::Now();
  absl::Time next_progress_;  // of the engine's thread

  absl::Mutex mutex_;
  v1::PrefillResponse answer_ ABSL_GUARDED_BY(mutex_);
  PublishOutcome published_ ABSL_GUARDED_BY(mutex_);       // by all requests so far
  uint32_t written_ ABSL_GUARDED_BY(mutex_) = 0;           // of the request in progress
  std::vector<uint32_t> missing_ ABSL_GUARDED_BY(mutex_);  // descending; the last is computed next
  uint32_t computing_ ABSL_GUARDED_BY(mutex_) = 0;         // the boundary that is computed now
  bool is_first_ ABSL_GUARDED_BY(mutex_) = true;
  uint32_t most_ready_ ABSL_GUARDED_BY(mutex_) = 0;  // tokens, of progress
};

absl::Status PrefillRun::Submit(EngineRequest request) {
  const auto self = shared_from_this();
  EngineCallbacks callbacks;
  callbacks.on_started = [self](const StartedInfo& info) { self->OnStarted(info); };
  if (progress_pause_ != absl::InfiniteDuration()) {
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

// The outcome of the first request says what the store lacks below the boundary that was restored,
// if there is a store.
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
    if (!missing_.empty()) published_.note.clear();  // it is about them
  } else {
    if (has(computing_)) published_.durable = std::min(published_.durable, outcome.durable);
    AddNote(outcome.note);
  }
  is_first_ = false;
  if (missing_.empty()) return false;
  computing_ = missing_.back();
  missing_.pop_back();
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

// Boundaries that the first request published stay, even if a later request fails.
void PrefillRun::OnError(const absl::Status& status) {
  {
    absl::ReleasableMutexLock lock(&mutex_);
    if (is_first_ || absl::IsCancelled(status) || absl::IsDeadlineExceeded(status)) {
      lock.Release();
      return sink_->OnEnd(status);
    }
    AddNote(absl::StrCat(missing_.size() + 1, " boundaries not kept, from ", computing_,
                         " on: ", status.message()));
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

}  // namespace

absl::Status RunPrefill(Engine* engine, EngineRequest request, absl::Duration progress_pause,
                        std::shared_ptr<GenerationSink> sink) {
  // The boundaries that a first, uncached run of the request keeps.
  request.asked =
      KeptBoundaries(request.token_ids.size(), request.breakpoints,
                     /*matched_tokens=*/0, /*restored_tokens=*/0, engine->layout().chunk_tokens);
  const auto run =
      std::make_shared<PrefillRun>(engine, std::move(request), progress_pause, std::move(sink));
  return run->Submit(run->first());
}

}  // namespace hearth
