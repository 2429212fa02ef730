#include "worker/engine/round_planner.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace hearth {
namespace {

absl::Status ShuttingDown() { return absl::UnavailableError("the worker is shutting down"); }

}  // namespace

RoundPlanner::RoundPlanner(const EngineOptions& options, const KvLayout& layout,
                           const ModelRunner* model, EngineCounters* counters)
    : options_(options),
      layout_(layout),
      model_(model),
      counters_(counters),
      scheduler_(options.max_running, options.max_queued) {}

void RoundPlanner::SetCache(PrefixCache* cache) {
  absl::MutexLock lock(&mu_);
  assert(active_ == 0);
  cache_ = cache;
}

PrefixCache* RoundPlanner::cache() const {
  absl::MutexLock lock(&mu_);
  return cache_;
}

absl::StatusOr<SequencePtr> RoundPlanner::Accept(EngineRequest request, EngineCallbacks callbacks) {
  absl::MutexLock lock(&mu_);
  if (draining_ || stopping_) {
    counters_->Add(EngineCounter::kRequestsRefused);
    return ShuttingDown();
  }
  const SequenceId id = next_id_;
  std::optional<SequenceId> dropped;
  if (!scheduler_.Enqueue(id, request.sequences(), request.tenant, &dropped)) {
    counters_->Add(EngineCounter::kRequestsRefused);
    return QueueIsFull("");
  }
  next_id_ += request.sequences();
  retries_admission_ = true;
  if (dropped.has_value()) dropped_ids_.insert(*dropped);
  counters_->Add(EngineCounter::kRequests);
  auto sequence = std::make_shared<Sequence>(id, std::move(request), std::move(callbacks));
  assert(sequences_.count(id) == 0);
  sequences_[id] = sequence;
  ++active_;
  work_arrived_.Signal();
  return sequence;
}

absl::Status RoundPlanner::QueueIsFull(const char* more) const {
  return absl::ResourceExhaustedError(absl::StrCat("the request queue is full", more,
                                                   ": max_queued is ", options_.max_queued,
                                                   ", max_running ", options_.max_running));
}

void RoundPlanner::WakeEngine() {
  absl::MutexLock lock(&mu_);
  work_arrived_.Signal();
}

void RoundPlanner::NoteMemoryFreed() {
  absl::MutexLock lock(&mu_);
  retries_admission_ = true;
  work_arrived_.Signal();
}

void RoundPlanner::Drain(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  draining_ = true;
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return active_ == 0; };
  if (mu_.AwaitWithDeadline(absl::Condition(&idle), deadline)) return;
  out_of_time_ = true;  // the next round ends the active sequences
  work_arrived_.Signal();
}

PrefixCache* RoundPlanner::Stop() {
  absl::MutexLock lock(&mu_);
  stopping_ = true;
  work_arrived_.SignalAll();
  return cache_;
}

std::optional<EngineRound> RoundPlanner::Next(const EngineAudit& audit) {
  absl::MutexLock lock(&mu_);
  for (;;) {
    EngineRound round;
    Sweep(absl::Now(), &round);
    assert(active_ >= sequences_.size());
    round.admits = std::exchange(retries_admission_, false) && scheduler_.Candidate().has_value();
    PlanStep(&round);
    if (!round.endings.empty() || round.admits || !round.looked_up.empty() || !round.step.empty()) {
      return round;
    }
    if (stopping_) return std::nullopt;
    const bool idle = sequences_.empty() && !draining_;
    if (idle && cache_ != nullptr && audit.HasWork()) {
      round.auditing = cache_;
      return round;
    }
    work_arrived_.WaitWithDeadline(&mu_, NextTimer());
  }
}

std::vector<SequencePart> RoundPlanner::NextDecodes() {
  absl::MutexLock lock(&mu_);
  const absl::Time now = absl::Now();
  for (const auto& [id, sequence] : sequences_) {
    if (!EndStatus(*sequence, now).ok()) return {};
    if (sequence->fetch.HasArrived() || now >= sequence->fetch.deadline()) return {};
  }
  if (!scheduler_.OnlyDecodes()) return {};
  if (retries_admission_ && scheduler_.Candidate().has_value()) return {};
  EngineRound round;
  PlanStep(&round);
  return std::move(round.step);
}

void RoundPlanner::Sweep(absl::Time now, EngineRound* round) {
  mu_.AssertHeld();
  for (const auto& [id, sequence] : sequences_) {
    if (absl::Status why = EndStatus(*sequence, now); !why.ok()) {
      round->endings.push_back({sequence, std::move(why)});
      continue;
    }
    if (std::optional<FetchOutcome> fetched = sequence->fetch.Take(now); fetched.has_value()) {
      round->looked_up.push_back({sequence, *std::move(fetched)});
    }
  }
  // Free the places of ended sequences before their callers are notified.
  for (const EngineRound::Ending& ending : round->endings) {
    scheduler_.Remove(ending.sequence->id);
    sequences_.erase(ending.sequence->id);
    dropped_ids_.erase(ending.sequence->id);
    retries_admission_ = true;
  }
}

absl::Status RoundPlanner::EndStatus(const Sequence& sequence, absl::Time now) const {
  mu_.AssertHeld();
  if (sequence.state->failed) return absl::CancelledError("another sample failed");
  if (sequence.state->cancelled) return Cancelled();
  if (stopping_ || out_of_time_) return ShuttingDown();
  if (dropped_ids_.count(sequence.id) > 0) {
    return QueueIsFull(", and a tenant with fewer requests took this request's place");
  }
  if (now >= sequence.request.deadline) {
    return absl::DeadlineExceededError("the request's deadline passed");
  }
  return absl::OkStatus();
}

void RoundPlanner::PlanStep(EngineRound* round) {
  mu_.AssertHeld();
  Scheduler::Guessed guessed;
  for (const auto& [id, sequence] : sequences_) {
    if (const uint32_t tokens = sequence->answer.speculation.drafted(); tokens > 0)
      guessed[id] = tokens;
  }
  // While sequences decode, a step computes few prompt tokens, because every decoded token waits
  // for the whole step. If the model does not batch, one row stands for one step of a prompt.
  const bool batches = model_->batches();
  for (const PlannedStep& planned : scheduler_.NextBatch(
           batches ? step_rows() : 1, batches ? model_->step_tokens(layout_) : 1, guessed)) {
    round->step.push_back(PartOf(planned));
  }
}

// If the model does not batch, a prompt step ends at the sequence's next planned step end.
SequencePart RoundPlanner::PartOf(const PlannedStep& planned) const {
  mu_.AssertHeld();
  SequencePart part{sequences_.at(planned.id), planned.kind, planned.tokens};
  if (planned.kind == StepKind::kPrefill && !model_->batches()) {
    const Sequence& sequence = *part.sequence;
    assert(sequence.next_step < sequence.step_ends.size());
    assert(sequence.step_ends[sequence.next_step] > sequence.position);
    part.tokens = sequence.step_ends[sequence.next_step] - sequence.position;
  }
  return part;
}

absl::Time RoundPlanner::NextTimer() const {
  mu_.AssertHeld();
  absl::Time timer = absl::InfiniteFuture();
  for (const auto& [id, sequence] : sequences_) {
    timer = std::min({timer, sequence->request.deadline, sequence->fetch.deadline()});
  }
  return timer;
}

SequencePtr RoundPlanner::Candidate() const {
  absl::MutexLock lock(&mu_);
  const std::optional<SequenceId> id = scheduler_.Candidate();
  return id.has_value() ? sequences_.at(*id) : nullptr;
}

bool RoundPlanner::Admit(SequenceId id) {
  absl::MutexLock lock(&mu_);
  if (dropped_ids_.count(id) > 0) return false;
  scheduler_.Admit(id);
  return true;
}

LoadWork RoundPlanner::WorkOf(const Sequence& sequence) const {
  assert(sequence.pooled.boundary < sequence.tokens());
  const uint32_t own = sequence.tokens() - sequence.pooled.boundary;
  uint64_t beside = 0;
  absl::MutexLock lock(&mu_);
  for (const auto& [id, other] : sequences_) {
    const uint32_t end = other->step_ends.empty() ? 0 : other->step_ends.back();
    if (other->position < end) beside += std::min(own, end - other->position);
  }
  return {sequence.pooled.boundary, sequence.tokens(), static_cast<uint32_t>(beside / own)};
}

void RoundPlanner::StartPrefill(const Sequence& sequence) {
  assert(!sequence.step_ends.empty() && sequence.step_ends.back() > sequence.position);
  absl::MutexLock lock(&mu_);
  // If the model does not batch, the scheduler counts prompt steps instead of prompt tokens.
  const uint32_t rows = model_->batches() ? sequence.step_ends.back() - sequence.position
                                          : static_cast<uint32_t>(sequence.step_ends.size());
  scheduler_.StartPrefill(sequence.id, rows);
}

void RoundPlanner::StartDecode(SequenceId id) {
  absl::MutexLock lock(&mu_);
  scheduler_.StartDecode(id);
}

void RoundPlanner::ReturnTokens(SequenceId id, uint32_t tokens) {
  absl::MutexLock lock(&mu_);
  scheduler_.ReturnTokens(id, tokens);
}

std::vector<SequencePtr> RoundPlanner::WithKv() const {
  absl::MutexLock lock(&mu_);
  std::vector<SequencePtr> found;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->kv != nullptr) found.push_back(sequence);
  }
  return found;
}

SequencePtr RoundPlanner::Victim(const Sequence& lacking) const {
  absl::MutexLock lock(&mu_);
  const Sequence& first = lacking.first == nullptr ? lacking : *lacking.first;
  const bool searches = first.request.searches();
  const SequenceId last = searches ? first.id + first.request.search.beams - 1 : lacking.id;
  const auto held_bytes = [this](SequenceId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto& kv = sequences_.at(id)->kv;
    return kv == nullptr ? 0 : kv->held_bytes(0);
  };
  const std::optional<SequenceId> id = scheduler_.Victim(last, held_bytes);
  return id.has_value() ? sequences_.at(*id) : nullptr;
}

void RoundPlanner::Requeue(const SequencePtr& rest, uint32_t places) {
  absl::MutexLock lock(&mu_);
  assert(sequences_.count(rest->id) == 1);
  sequences_[rest->id] = rest;
  scheduler_.Requeue(rest->id, places);
  retries_admission_ = true;
}

SequencePtr RoundPlanner::Fork(const SequencePtr& first, uint32_t number) {
  absl::MutexLock lock(&mu_);
  assert(sequences_.count(first->id) == 1);
  auto sample = std::make_shared<Sequence>(first->id + number, first, number);
  assert(sequences_.count(sample->id) == 0);  // Accept() left these ids free
  sequences_[sample->id] = sample;
  ++active_;
  scheduler_.Fork(first->id, sample->id);
  return sample;
}

void RoundPlanner::RemoveFork(const Sequence& first, SequenceId fork) {
  absl::MutexLock lock(&mu_);
  scheduler_.RemoveFork(first.id, fork);
  const size_t erased = sequences_.erase(fork);
  assert(erased == 1 && active_ > sequences_.size());
  --active_;
}

void RoundPlanner::Remove(SequenceId id) {
  absl::MutexLock lock(&mu_);
  scheduler_.Remove(id);
  sequences_.erase(id);
  dropped_ids_.erase(id);
  retries_admission_ = true;
}

void RoundPlanner::NoteDone() {
  absl::MutexLock lock(&mu_);
  assert(active_ > sequences_.size());  // a removed sequence counts as active until NoteDone
  --active_;
}

void RoundPlanner::AddTo(EngineStats* stats) const {
  absl::MutexLock lock(&mu_);
  stats->running = scheduler_.running();
  stats->queued = scheduler_.queued();
}

}  // namespace hearth
