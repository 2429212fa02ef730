#include "worker/engine/engine_impl.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/engine/request/request_check.h"
#include "worker/engine/runner/model_fingerprint.h"

namespace hearth {
namespace {

// Maps an error of a model step to the request's error. On kResourceExhausted the caller may retry;
// every other error is the worker's fault (kInternal).
absl::Status StepError(const absl::Status& status) {
  const bool keeps = status.ok() || absl::IsResourceExhausted(status);
  return keeps ? status : absl::InternalError(status.message());
}

// Returns the model's part for a decode step of a sequence.
StepPart DecodePart(const SequencePart& part) {
  Sequence& sequence = *part.sequence;
  assert(sequence.kv != nullptr && sequence.answer.generated >= 1);
  return {sequence.kv.get(), sequence.NextTokens(part.tokens), &sequence.answer.logits, part.tokens,
          sequence.IsGreedy()};
}

bool IsDecode(const SequencePart& part) { return part.kind == StepKind::kDecode; }

// Returns whether the step of a part also reports the log probabilities of prompt tokens.
bool ReportsPrompt(const SequencePart& part) {
  const Sequence& sequence = *part.sequence;
  return part.kind == StepKind::kPrefill && sequence.first == nullptr &&
         sequence.request.sampling.prompt_logprobs.has_value() &&
         sequence.reported_tokens < sequence.request.token_ids.size();
}

KvLayout LayoutFor(const ModelRunner& model, uint32_t chunk_tokens) {
  KvLayout layout = LayoutOf(model.config(), model.kv_dtype(), chunk_tokens, model.exactness());
  layout.quantization = model.kv().quantization;
  return layout;
}

EngineOptions WithDefaults(EngineOptions options, const KvLayout& layout) {
  options.max_running = options.PlacesOf(layout.exactness);
  uint64_t& staging = options.memory.staging_bytes;
  if (staging == 0) staging = DefaultStagingBytes(layout);
  return options;
}

}  // namespace

class EngineImpl::Handle : public EngineRequestHandle {
 public:
  Handle(std::shared_ptr<Link> link, std::shared_ptr<RequestState> state)
      : link_(std::move(link)), state_(std::move(state)) {}
  void Cancel() override {
    state_->cancelled = true;
    absl::MutexLock lock(&link_->mu);
    if (link_->engine != nullptr) link_->engine->planner_.WakeEngine();
  }

 private:
  const std::shared_ptr<Link> link_;
  const std::shared_ptr<RequestState> state_;
};

EngineImpl::EngineImpl(const EngineOptions& options, std::unique_ptr<ModelRunner> model,
                       std::string why_not_invariant)
    : options_(WithDefaults(options, LayoutFor(*model, options.chunk_tokens))),
      model_(std::move(model)),
      why_not_invariant_(std::move(why_not_invariant)),
      layout_(LayoutFor(*model_, options.chunk_tokens)),
      planner_(options_, layout_, model_.get(), &counters_),
      keeper_(options_.memory, options_.cache.publish_timeout, layout_, &counters_),
      fetcher_(options_.cache, options_.max_running, layout_, &keeper_.pool(), &counters_,
               [this] { planner_.WakeEngine(); }),
      audit_(options_.cache, layout_, model_.get(), &keeper_.pool(), &counters_,
             [this] { planner_.WakeEngine(); }),
      answers_(layout_, model_.get(), &planner_, &keeper_, &counters_,
               [this](Sequence* sequence) { LeaveAhead(sequence); }),
      beams_(model_.get(), &planner_, &keeper_, &answers_),
      memory_(layout_, model_.get(), &planner_, &keeper_, &audit_, &beams_, &counters_,
              options_.on_warning),
      restorer_(layout_, model_.get(), &fetcher_, &keeper_, &memory_, &counters_) {
  absl::MutexLock lock(&link_->mu);
  link_->engine = this;
}

EngineImpl::~EngineImpl() {
  {
    absl::MutexLock lock(&link_->mu);
    link_->engine = nullptr;
  }
  PrefixCache* const cache = planner_.Stop();
  if (thread_.joinable()) thread_.join();
  if (cache != nullptr) cache->CancelCalls();
  fetcher_.Stop();
  audit_.Stop();
  keeper_.publisher().Stop();
}

absl::Status EngineImpl::Start() {
  assert(!thread_.joinable());
  if (absl::Status status = layout_.Validate(); !status.ok()) return status;
  absl::Notification started;
  absl::Status status;
  // The canary must run on the thread that will run the model's steps.
  thread_ = std::thread([this, &started, &status] { Run(&started, &status); });
  started.WaitForNotification();
  SetRecycledLimit(RecycledLimitOf(layout_, options_.max_running, model_->kv_bytes().budget));
  return status;
}

absl::Status EngineImpl::ComputeFingerprint() {
  absl::StatusOr<ComputeIdentity> identity = model_->Identify(layout_);
  if (!identity.ok()) return identity.status();
  const auto make = [&] {
    return FingerprintOf(model_->config(), layout_, model_->weights_digest(), *identity);
  };
  absl::StatusOr<Fingerprint> fingerprint = make();
  if (!fingerprint.ok()) return fingerprint.status();
  fingerprint_ = *std::move(fingerprint);
  for (const ModelAdapter& adapter : model_->adapters()) {
    identity->adapter = DigestHex(adapter.digest);
    fingerprint = make();
    if (!fingerprint.ok()) return fingerprint.status();
    adapters_.push_back({adapter.name, adapter.rank, adapter.bytes, *std::move(fingerprint)});
  }
  return absl::OkStatus();
}

void EngineImpl::SetCache(PrefixCache* cache) { planner_.SetCache(cache); }

absl::Status EngineImpl::Complete(EngineRequest* request) const {
  return CompleteRequest(options_, *model_, layout_, request);
}

absl::StatusOr<std::shared_ptr<EngineRequestHandle>> EngineImpl::Submit(EngineRequest request,
                                                                        EngineCallbacks callbacks) {
  if (absl::Status status = CheckRequest(request, config()); !status.ok()) return status;
  if (absl::Status status = Complete(&request); !status.ok()) return status;
  if (absl::Status status = CheckPlaces(request, options_.max_running); !status.ok()) return status;
  absl::StatusOr<SequencePtr> sequence = planner_.Accept(std::move(request), std::move(callbacks));
  if (!sequence.ok()) return sequence.status();
  return std::make_shared<Handle>(link_, (*sequence)->state);
}

void EngineImpl::Drain(absl::Time deadline) {
  planner_.Drain(deadline);
  keeper_.publisher().WaitIdle(deadline);
}

std::vector<std::string> EngineImpl::notes() const {
  std::vector<std::string> notes = model_->notes();
  notes.push_back(absl::StrCat("max-running: ", options_.max_running, " sequences at a time"));
  if (options_.exactness == ExactnessChoice::kAuto && !why_not_invariant_.empty() &&
      options_.FlagsOfInvariant().empty()) {
    notes.push_back(absl::StrCat("--exactness auto chose exact because: ", why_not_invariant_));
  }
  return notes;
}

std::vector<std::string> EngineImpl::warnings() const {
  std::vector<std::string> warnings;
  if (options_.memory.kv_offload_bytes > 0 && !model_->may_offload()) {
    warnings.push_back("--kv-offload-bytes has no effect: kv-cache offloaded runs as dynamic");
  }
  if (layout_.exactness != Exactness::kInvariant && !options_.FlagsOfInvariant().empty()) {
    warnings.push_back(
        absl::StrCat(ExactnessName(layout_.exactness), ", not invariant: ", why_not_invariant_));
  }
  return warnings;
}

EngineStats EngineImpl::Stats() const {
  EngineStats stats;
  stats.pool_bytes = keeper_.pool().bytes();
  stats.pool_limit_bytes = options_.memory.pool_bytes;
  stats.staging_limit_bytes = options_.memory.staging_bytes;
  stats.places = options_.PlacesOf(layout_.exactness);
  stats.staged_bytes = keeper_.staged_bytes();
  stats.kv_budget_bytes = model_->kv_bytes().budget;
  stats.kv_used_bytes = model_->kv_bytes().used;
  stats.kv_blocks_taken = model_->kv_bytes().blocks_taken;
  stats.counters = counters_.Snapshot();
  planner_.AddTo(&stats);
  return stats;
}

LoadReport EngineImpl::EstimateLoad(uint32_t boundary) const {
  // `boundary` comes from a message and may be any number, but no prompt is longer than the model's
  // context.
  const auto most = static_cast<uint32_t>(model_->config().max_position_embeddings);
  return fetcher_.Estimate(std::min(boundary, most));
}

void EngineImpl::Run(absl::Notification* started, absl::Status* start_status) {
  *start_status = Caught([&] { return ComputeFingerprint(); });
  started->Notify();
  while (std::optional<EngineRound> round = planner_.Next(audit_)) {
    for (const auto& [sequence, status] : round->endings) answers_.Fail(sequence, status);
    if (round->admits) AdmitWaiting();
    for (auto& [sequence, fetched] : round->looked_up) {
      Begin(sequence, std::move(fetched), /*looks_again=*/true);
    }
    if (!round->step.empty()) Step(std::move(round->step));
    if (round->auditing != nullptr) audit_.Step(round->auditing);
    ReportDeviceFailure();
  }
}

void EngineImpl::ReportDeviceFailure() {
  if (has_reported_failure_ || options_.on_device_failure == nullptr) return;
  const std::string failure = model_->device_failure();
  if (failure.empty()) return;
  has_reported_failure_ = true;
  options_.on_device_failure(failure);
}

// Admits waiting sequences in scheduling order, until memory does not suffice for one. Memory that
// is freed after this call starts makes the engine try again.
void EngineImpl::AdmitWaiting() {
  model_->WhenKvFreed([link = link_] {
    absl::MutexLock lock(&link->mu);
    if (link->engine != nullptr) link->engine->planner_.NoteMemoryFreed();
  });
  bool has_room = true;
  while (const SequencePtr sequence = has_room ? planner_.Candidate() : nullptr) {
    const absl::Status tried = Caught([&] {
      const absl::StatusOr<bool> admitted = memory_.TryAdmit(sequence.get());
      has_room = !admitted.ok() || *admitted;
      return admitted.status();
    });
    if (!tried.ok()) {
      answers_.Fail(sequence, tried);
    } else if (has_room && planner_.Admit(sequence->id)) {
      LookUp(sequence);
    }
  }
}

void EngineImpl::LookUp(const SequencePtr& sequence) {
  sequence->times.admitted_at = absl::Now();
  PrefixCache* const cache = planner_.cache();
  if (cache == nullptr || !fetcher_.MayHaveMore(*sequence)) return Begin(sequence, FetchOutcome());
  std::optional<FetchOutcome> known = fetcher_.LookUp(sequence, cache, planner_.WorkOf(*sequence));
  if (known.has_value()) Begin(sequence, *std::move(known));
}

void EngineImpl::Begin(const SequencePtr& sequence, FetchOutcome fetched, bool looks_again) {
  const absl::Status begun = Caught([&] {
    if (looks_again) memory_.LookUpPool(sequence.get());
    return TryBegin(sequence, std::move(fetched));
  });
  if (!begun.ok()) answers_.Fail(sequence, begun);
}

absl::Status EngineImpl::TryBegin(const SequencePtr& sequence, FetchOutcome fetched) {
  if (sequence->StopWaiting()) counters_.Add(EngineCounter::kFetchTimeouts);
  sequence->kept.lease = std::move(fetched.lease);
  uint32_t& matched = sequence->pooled.matched_tokens;
  matched = std::max(matched, std::min(fetched.matched_tokens, sequence->tokens()));
  LoadReport load = fetched.load;
  const absl::Status status =
      restorer_.Restore(sequence.get(), std::move(fetched), planner_.cache() != nullptr);
  if (!status.ok()) return status;
  load = fetcher_.NoteLoad(*sequence, load);
  keeper_.AddRestoredToPool(*sequence);
  audit_.Offer(*sequence);
  sequence->times.restored_at = absl::Now();
  if (sequence->callbacks.on_started != nullptr && !sequence->resumed) {
    sequence->callbacks.on_started(
        {sequence->tokens(), sequence->restored.boundary, matched, sequence->restored.from, load});
  }
  assert(sequence->kv != nullptr);
  if (sequence->step_ends.empty()) return FinishPrefill(sequence);
  planner_.StartPrefill(*sequence);
  return absl::OkStatus();
}

absl::Status EngineImpl::StepModel(absl::Span<const SequencePart> parts) {
  std::vector<StepPart> step;
  uint64_t rows = 0, prefilled = 0;
  for (const SequencePart& part : parts) {
    Sequence& sequence = *part.sequence;
    StepPart& added = step.emplace_back();
    assert(sequence.kv != nullptr);
    if (IsDecode(part)) {
      added = DecodePart(part);
    } else {
      added.kv = sequence.kv.get();
      const uint32_t end = sequence.position + part.tokens;
      assert(part.tokens >= 1 && end <= sequence.step_ends.back());
      added.tokens = sequence.PromptTokens(sequence.position, part.tokens);
      const bool last = end == sequence.step_ends.back();
      added.logits = last && sequence.generates() ? &sequence.answer.logits : nullptr;
    }
    rows += added.tokens.size();
    if (part.kind == StepKind::kPrefill) prefilled += added.tokens.size();
  }
  const absl::Time begin = fetcher_.loads()->Now();
  const absl::Status status = Caught([&] { return model_->Step(step); });
  if (!status.ok()) return StepError(status);
  // Do not measure a step of few rows: its time is mostly the time to read the weights, not the
  // cost of the prompt's tokens.
  if (2 * prefilled >= layout_.chunk_tokens)
    fetcher_.loads()->OnStep(prefilled, fetcher_.loads()->Now() - begin);
  counters_.Add(EngineCounter::kSteps);
  counters_.Add(EngineCounter::kStepRows, rows);
  return absl::OkStatus();
}

// Computes the logits of every prompt token, in steps of 64 rows: the logits of one row take about
// 1 MB.
absl::Status EngineImpl::StepWithPromptLogprobs(const SequencePart& part) {
  constexpr uint32_t kRows = 64;
  Sequence& sequence = *part.sequence;
  for (uint32_t done = 0; done < part.tokens; done += kRows) {
    const uint32_t begin = sequence.position + done, rows = std::min(kRows, part.tokens - done);
    const StepPart step{sequence.kv.get(), sequence.PromptTokens(begin, rows),
                        &sequence.answer.logits, rows};
    const absl::Status stepped = model_->Step({&step, 1});
    if (!stepped.ok()) return StepError(stepped);
    counters_.Add(EngineCounter::kSteps);
    counters_.Add(EngineCounter::kStepRows, rows);
    if (absl::Status s = ReportPromptLogprobs(&sequence, begin, rows); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// Reports the log probabilities of prompt tokens: row i has the logits of token i + 1. Keeps only
// the last row in answer.logits.
absl::Status EngineImpl::ReportPromptLogprobs(Sequence* sequence, uint32_t begin, uint32_t rows) {
  StepLogits& logits = sequence->answer.logits;
  const std::vector<int32_t>& prompt = sequence->request.token_ids;
  assert(rows > 0 && !logits.empty());
  // prompt tokens passed to on_prompt so far
  uint32_t& reported_tokens = sequence->reported_tokens;
  std::vector<SampledToken> reported(reported_tokens == 0 ? 1 : 0);
  if (reported_tokens == 0) reported[0].id = prompt[0];
  assert(reported_tokens <= prompt.size());
  reported_tokens = std::max(reported_tokens, 1U);
  for (uint32_t row = 0; row < rows && begin + row + 1 < prompt.size(); ++row) {
    if (begin + row + 1 < reported_tokens) continue;
    SampledToken& token = reported.emplace_back();
    token.id = prompt[begin + row + 1];
    const absl::Status added = sequence->answer.sampler.AddLogprobs(
        logits.Row(row, rows).values, *sequence->request.sampling.prompt_logprobs, &token);
    if (!added.ok()) return added;
    ++reported_tokens;
  }
  logits.KeepLast(logits.values().size() / rows);
  if (sequence->callbacks.on_prompt != nullptr && !reported.empty())
    sequence->callbacks.on_prompt(reported);
  return absl::OkStatus();
}

// Runs a step and handles its results. If the model does not batch, each part is a separate step.
// If a step of several parts fails, each part is retried alone, so that only the faulty request
// fails.
void EngineImpl::Step(std::vector<SequencePart> parts) {
  MakeRoom(&parts);
  std::vector<SequencePart> joint;
  std::copy_if(parts.begin(), parts.end(), std::back_inserter(joint), std::not_fn(ReportsPrompt));
  absl::Status together;
  bool alone = !model_->batches();
  if (!alone && !joint.empty()) {
    together = StepModel(joint);
    alone = !together.ok() && joint.size() > 1;
  }
  HandleResults(parts, together, alone);
  if (model_->is_asynchronous()) StepAhead();
}

void EngineImpl::HandleResults(absl::Span<const SequencePart> parts, const absl::Status& stepped,
                               bool alone) {
  answers_.HoldTokens(model_->is_asynchronous() &&
                      std::all_of(parts.begin(), parts.end(), IsDecode));
  for (const SequencePart& part : parts) {
    // RoundPlanner::Sweep ends the sequence in the next round
    if (part.sequence->state->failed) continue;
    absl::Status status = stepped;
    if (ReportsPrompt(part)) {
      status = Caught([&] { return StepWithPromptLogprobs(part); });
    } else if (alone) {
      status = StepModel({&part, 1});
    }
    if (status.ok()) {
      status = Caught(
          [&] { return part.kind == StepKind::kPrefill ? AfterPrefill(part) : AfterDecode(part); });
    }
    if (!status.ok()) answers_.Fail(beams_.Registered(part.sequence), status);
  }
  answers_.HoldTokens(false);
}

void EngineImpl::StepAhead() {
  while (StartAhead()) {
    answers_.SendTokens();
    for (const SequencePart& part : std::vector<SequencePart>(ahead_.parts)) {
      const RequestState& state = *part.sequence->state;
      if (!state.cancelled && !state.failed) continue;
      LeaveAhead(part.sequence.get());
      answers_.Fail(part.sequence, RoundPlanner::Cancelled());
    }
    FinishAhead();
    const std::vector<SequencePart> parts = std::exchange(ahead_.parts, {});
    HandleResults(parts, ahead_.status, !ahead_.status.ok() && ahead_.has_several);
  }
  answers_.SendTokens();
}

// Starts the next step if it only decodes and free memory suffices for it. Otherwise the next round
// plans the step again.
bool EngineImpl::StartAhead() {
  std::vector<SequencePart> parts = planner_.NextDecodes();
  if (parts.empty()) return false;
  const absl::Status started = Caught([&] {
    std::vector<StepPart> step;
    for (const SequencePart& part : parts) {
      step.push_back(DecodePart(part));
      const absl::Status room = model_->MakeRoom(step.back().kv, static_cast<int>(part.tokens));
      if (!room.ok()) return room;
    }
    return model_->Start(step);
  });
  if (!started.ok()) return false;
  ahead_.has_several = parts.size() > 1;
  ahead_.is_running = true;
  ahead_.parts = std::move(parts);
  return true;
}

void EngineImpl::FinishAhead() {
  if (!std::exchange(ahead_.is_running, false)) return;
  ahead_.status = StepError(Caught([&] { return model_->Finish(); }));
  if (!ahead_.status.ok()) return;
  counters_.Add(EngineCounter::kSteps);
  for (const SequencePart& part : ahead_.parts)
    counters_.Add(EngineCounter::kStepRows, part.tokens);
}

void EngineImpl::LeaveAhead(Sequence* sequence) {
  const auto part =
      std::find_if(ahead_.parts.begin(), ahead_.parts.end(),
                   [&](const SequencePart& one) { return one.sequence.get() == sequence; });
  if (part == ahead_.parts.end()) return;
  FinishAhead();
  SequenceKv* const kv = sequence->kv.get();
  if (ahead_.status.ok()) model_->Forget(kv, kv->length() - static_cast<int>(part->tokens));
  ahead_.parts.erase(part);
}

void EngineImpl::MakeRoom(std::vector<SequencePart>* parts) {
  std::sort(parts->begin(), parts->end(),
            [](const auto& a, const auto& b) { return a.sequence->id < b.sequence->id; });
  const auto has_none = [](const SequencePart& part) {
    return part.sequence->kv == nullptr || part.sequence->state->failed;
  };
  for (SequencePart& part : *parts) {
    if (has_none(part)) continue;  // an older sequence preempted it
    const absl::Status room = Caught([&] { return memory_.MakeRoom(&part); });
    if (room.ok()) continue;
    answers_.Fail(part.sequence,
                  KvMemory::IsLack(room) ? absl::ResourceExhaustedError(room.message()) : room);
  }
  parts->erase(std::remove_if(parts->begin(), parts->end(), has_none), parts->end());
}

absl::Status EngineImpl::AfterPrefill(const SequencePart& part) {
  Sequence& sequence = *part.sequence;
  const uint32_t begin = sequence.position, end = begin + part.tokens;
  counters_.Add(EngineCounter::kPrefillSteps);
  const uint32_t again = std::min(end, std::max(begin, sequence.recomputed_end)) - begin;
  counters_.Add(EngineCounter::kRecomputedTokens, again);
  counters_.Add(EngineCounter::kComputedTokens, part.tokens - again);
  sequence.computed_tokens += part.tokens - again;
  if (sequence.kept.staged != nullptr) sequence.kept.staged->Record(*sequence.kv, begin, end);
  sequence.position = end;
  assert(end <= sequence.tokens() && sequence.kv->length() == static_cast<int>(end));
  const std::vector<uint32_t>& ends = sequence.step_ends;
  while (sequence.next_step < ends.size() && ends[sequence.next_step] <= end) ++sequence.next_step;
  keeper_.ShareRestored(&sequence);
  if (sequence.kept.lease != nullptr) keeper_.KeepPassed(&sequence, begin, planner_.cache());
  if (end == ends.back()) return FinishPrefill(part.sequence);
  if (sequence.callbacks.on_progress != nullptr && end > sequence.recomputed_end)
    sequence.callbacks.on_progress(end);
  return absl::OkStatus();
}

absl::Status EngineImpl::FinishPrefill(const SequencePtr& sequence) {
  const bool has_answer = sequence->answer.generated > 0;
  sequence->times.prefilled_at = absl::Now();
  if (has_answer) sequence->times = sequence->first_times;
  if (!sequence->generates()) {
    const absl::Status given = keeper_.GiveSnapshot(sequence.get(), fingerprint_, adapters_);
    if (!given.ok()) return given;
    keeper_.Keep(sequence.get(), planner_.cache());
    answers_.Finish(sequence, FinishReason::kLength);
    return absl::OkStatus();
  }
  if (sequence->request.searches()) return beams_.Begin(sequence);
  const StepLogits& logits = sequence->answer.logits;
  absl::StatusOr<std::optional<FinishReason>> finished = answers_.Emit(logits, sequence);
  if (!finished.ok()) return finished.status();
  absl::Status begun = has_answer ? absl::OkStatus() : BeginSamples(sequence);
  if (!begun.ok()) return begun;
  answers_.HashLogits(logits, sequence.get());
  // Copy the KV for the cache after the token is sent, so that copying does not delay the token.
  keeper_.Keep(sequence.get(), planner_.cache());
  if (finished->has_value()) {
    answers_.Finish(sequence, **finished);
    return absl::OkStatus();
  }
  sequence->Speculate();
  planner_.StartDecode(sequence->id);
  return absl::OkStatus();
}

// Forks the request's further samples from the first, and sends the first token of each.
absl::Status EngineImpl::BeginSamples(const SequencePtr& first) {
  for (uint32_t number = 1; number < first->request.samples; ++number) {
    const SequencePtr sample = planner_.Fork(first, number);
    assert(number <= first->fork_kvs.size());  // TryAdmit() made one KV for each further sample
    sample->kv = std::move(first->fork_kvs[number - 1]);
    model_->Fork(*first->kv, sample->kv.get());
    const StepLogits& logits = first->answer.logits;
    const absl::StatusOr<std::optional<FinishReason>> finished = answers_.Emit(logits, sample);
    if (!finished.ok()) return finished.status();
    answers_.HashLogits(logits, sample.get());
    if (finished->has_value())
      answers_.Finish(sample, **finished);
    else
      sample->Speculate();
  }
  first->fork_kvs.clear();
  return absl::OkStatus();
}

absl::Status EngineImpl::AfterDecode(const SequencePart& part) {
  const SequencePtr& sequence = part.sequence;
  if (sequence->state->beams != nullptr) {
    counters_.Add(EngineCounter::kDecodeSteps);
    ++sequence->state->decode_steps;
    return beams_.AfterDecode(sequence);
  }
  const absl::StatusOr<std::optional<FinishReason>> finished =
      answers_.EmitStep(sequence, part.tokens);
  if (!finished.ok()) return finished.status();
  if (finished->has_value()) {
    answers_.Finish(sequence, **finished);
    return absl::OkStatus();
  }
  sequence->Speculate();
  return absl::OkStatus();
}

}  // namespace hearth
