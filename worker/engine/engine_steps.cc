// EngineImpl, from a sequence's first step to its end.

#include <algorithm>
#include <atomic>
#include <cassert>
#include <exception>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/engine/engine_impl.h"

namespace hearth {
namespace {

double Milliseconds(absl::Time begin, absl::Time end) {
  return absl::ToDoubleMilliseconds(end - begin);
}

// A caller may come again when there is room; anything else is the worker's fault.
absl::Status StepError(const absl::Status& status) {
  return absl::IsResourceExhausted(status) ? status : absl::InternalError(status.message());
}

}  // namespace

// Where the model takes one sequence a step, prompts are cut as the canonical schedule says.
EngineImpl::Part EngineImpl::PartOf(const PlannedStep& planned) const {
  Part part{sequences_.at(planned.id), planned.kind, planned.tokens};
  if (planned.kind == StepKind::kPrefill && !model_->batches()) {
    const Sequence& sequence = *part.sequence;
    part.tokens = sequence.step_ends[sequence.next_step] - sequence.position;
  }
  return part;
}

void EngineImpl::PlanStep(Round* round) {
  if (model_->batches()) {
    // Few rows beside what decodes: its next token waits for these, not for all of a prompt.
    for (const PlannedStep& planned :
         scheduler_.NextBatch(step_rows(), model_->step_tokens(layout_))) {
      round->step.push_back(PartOf(planned));
    }
  } else if (const std::optional<PlannedStep> planned = scheduler_.Next()) {
    round->step.push_back(PartOf(*planned));
  }
}

absl::Status EngineImpl::StepModel(absl::Span<const Part> parts) {
  std::vector<StepPart> step;
  uint64_t rows = 0, prefilled = 0;
  double positions = 0;  // of all rows together
  for (const Part& part : parts) {
    Sequence& sequence = *part.sequence;
    StepPart& added = step.emplace_back();
    added.kv = sequence.kv.get();
    if (part.kind == StepKind::kDecode) {
      assert(sequence.answer.generated >= 1);
      added.tokens = {&sequence.answer.last_token, 1};
      added.logits = &sequence.answer.logits;
    } else {
      const uint32_t end = sequence.position + part.tokens;
      assert(part.tokens >= 1 && end <= sequence.step_ends.back());
      added.tokens =
          absl::MakeConstSpan(sequence.request.token_ids).subspan(sequence.position, part.tokens);
      const bool last = end == sequence.step_ends.back();
      added.logits = last && sequence.generates() ? &sequence.answer.logits : nullptr;
    }
    rows += added.tokens.size();
    if (part.kind == StepKind::kPrefill) prefilled += added.tokens.size();
    positions += added.tokens.size() * (added.kv->length() + added.tokens.size() / 2.0);
  }
  absl::Status status;
  const absl::Time begin = fetcher_.loads()->Now();
  try {
    status = room_.With([&] { return model_->Step(step); });
  } catch (const std::exception& error) {
    status = absl::InternalError(error.what());
  }
  if (!status.ok()) return StepError(status);
  if (prefilled > 0)
    fetcher_.loads()->OnStep(rows, positions / rows, fetcher_.loads()->Now() - begin);
  counters_.Add(EngineCounter::kSteps);
  counters_.Add(EngineCounter::kStepRows, rows);
  return absl::OkStatus();
}

// Of a step that fails each part is tried alone: only what is at fault ends.
void EngineImpl::Step(const std::vector<Part>& parts) {
  const absl::Status together = StepModel(parts);
  for (const Part& part : parts) {
    if (part.sequence->state->failed) continue;  // its turn to end comes
    absl::Status status = together;
    if (!together.ok() && parts.size() > 1) status = StepModel({&part, 1});
    try {
      if (status.ok()) status = AfterPart(part);
    } catch (const std::exception& error) {
      status = absl::InternalError(error.what());
    }
    if (!status.ok()) Fail(part.sequence, status);
  }
}

absl::Status EngineImpl::AfterPart(const Part& part) {
  return part.kind == StepKind::kPrefill ? AfterPrefill(part) : AfterDecode(part.sequence);
}

absl::Status EngineImpl::AfterPrefill(const Part& part) {
  Sequence& sequence = *part.sequence;
  const uint32_t begin = sequence.position, end = begin + part.tokens;
  counters_.Add(EngineCounter::kPrefillSteps);
  counters_.Add(EngineCounter::kComputedTokens, part.tokens);
  sequence.computed_tokens += part.tokens;
  if (sequence.kept.staged != nullptr) sequence.kept.staged->Record(*sequence.kv, begin, end);
  sequence.position = end;
  const std::vector<uint32_t>& ends = sequence.step_ends;
  while (sequence.next_step < ends.size() && ends[sequence.next_step] <= end) ++sequence.next_step;
  if (sequence.kept.lease != nullptr) keeper_.KeepPassed(&sequence, begin, cache());
  return end == ends.back() ? FinishPrefill(part.sequence) : absl::OkStatus();
}

absl::Status EngineImpl::FinishPrefill(const SequencePtr& sequence) {
  sequence->times.prefilled_at = absl::Now();
  if (!sequence->generates()) {
    keeper_.Keep(sequence.get(), cache());
    Finish(sequence, FinishReason::kLength);
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<FinishReason>> finished = Emit(sequence.get());
  if (!finished.ok()) return finished.status();
  if (absl::Status begun = BeginSamples(sequence); !begun.ok()) return begun;
  HashLogits(sequence.get());
  // After the token is out: the copies do not belong to its latency.
  keeper_.Keep(sequence.get(), cache());
  if (finished->has_value()) {
    Finish(sequence, **finished);
    return absl::OkStatus();
  }
  absl::MutexLock lock(&mu_);
  scheduler_.StartDecode(sequence->id);
  return absl::OkStatus();
}

// The other samples of a request, each with its first token.
absl::Status EngineImpl::BeginSamples(const SequencePtr& first) {
  for (uint32_t number = 1; number < first->request.samples; ++number) {
    SequencePtr sample;
    {
      absl::MutexLock lock(&mu_);
      sample = std::make_shared<Sequence>(next_id_++, first, number);
      sequences_[sample->id] = sample;
      ++active_;
      scheduler_.Fork(first->id, sample->id);
    }
    sample->kv = std::move(first->fork_kvs[number - 1]);
    model_->Fork(*first->kv, sample->kv.get());
    sample->answer.logits = first->answer.logits;
    const absl::StatusOr<std::optional<FinishReason>> finished = Emit(sample.get());
    if (!finished.ok()) return finished.status();
    HashLogits(sample.get());
    if (finished->has_value()) Finish(sample, **finished);
  }
  first->fork_kvs.clear();
  return absl::OkStatus();
}

absl::Status EngineImpl::AfterDecode(const SequencePtr& sequence) {
  counters_.Add(EngineCounter::kDecodeSteps);
  absl::StatusOr<std::optional<FinishReason>> finished = Emit(sequence.get());
  if (!finished.ok()) return finished.status();
  HashLogits(sequence.get());
  if (finished->has_value()) {
    Finish(sequence, **finished);
  } else if (sequence->request.hash_logits) {
    // Whoever decodes faster than its logits are hashed waits for that, and nobody else does.
    const auto resume = [this, id = sequence->id] {
      absl::MutexLock lock(&mu_);
      scheduler_.Resume(id);
      bell_.Signal();
    };
    absl::MutexLock lock(&mu_);
    const auto& digest = sequence->state->digests[sequence->sample];
    if (!digest->AwaitRoom(resume)) scheduler_.Pause(sequence->id);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<FinishReason>> EngineImpl::Emit(Sequence* sequence) {
  absl::StatusOr<SampledToken> token = sequence->answer.sampler.Sample(
      sequence->answer.logits, sequence->request.sampling, sequence->answer.generated);
  if (!token.ok()) return token.status();
  token->sample = sequence->sample;
  if (sequence->answer.generated == 0) sequence->times.first_token_at = absl::Now();
  const std::vector<int32_t>& eos = config().eos_token_ids;
  if (!sequence->request.ignore_eos && std::binary_search(eos.begin(), eos.end(), token->id)) {
    return FinishReason::kEos;
  }
  ++sequence->answer.generated;
  sequence->answer.last_token = token->id;
  sequence->answer.tokens.push_back(token->id);
  counters_.Add(EngineCounter::kGeneratedTokens);
  const auto& on_token = sequence->callbacks.on_token;
  if (on_token != nullptr && !on_token(*token)) return FinishReason::kStop;
  if (sequence->answer.generated == sequence->request.max_new_tokens) return FinishReason::kLength;
  return std::optional<FinishReason>();
}

// The logits that a token was drawn from: those of a request's first one always, all on request.
void EngineImpl::HashLogits(Sequence* sequence) {
  std::shared_ptr<LogitsDigest>& digest = sequence->state->digests[sequence->sample];
  const bool all = sequence->request.hash_logits;
  if (digest == nullptr && (all || sequence->first == nullptr)) {
    digest = std::make_shared<LogitsDigest>(&digests_, all);
  }
  if (digest != nullptr) digest->Add(&sequence->answer.logits);
}

// Frees the sequence's place and memory. Callbacks come after it, Left() after them.
void EngineImpl::Leave(Sequence* sequence) {
  if (sequence->kv != nullptr) model_->Release(std::move(sequence->kv));
  for (auto& kv : sequence->fork_kvs) {
    if (kv != nullptr) model_->Release(std::move(kv));
  }
  sequence->fork_kvs.clear();
  sequence->kept.staged.reset();
  sequence->kept.lease.reset();
  sequence->restored.objects.clear();
  sequence->pooled.objects.clear();
  StopWaiting(sequence);
  absl::MutexLock lock(&mu_);
  scheduler_.Remove(sequence->id);
  sequences_.erase(sequence->id);
  ++releases_;
}

// Nobody waits for what is being fetched for it: the fetch's thread is another's from now on.
void EngineImpl::StopWaiting(Sequence* sequence) {
  if (sequence->fetch.GiveUp() && sequence->prefix.stop != nullptr) sequence->prefix.stop->Stop();
}

void EngineImpl::Left() {
  absl::MutexLock lock(&mu_);
  assert(active_ >= 1);
  --active_;
}

// In blocks samples share the prompt's whole chunks: these count once, as the one that holds most
// of them has them.
void EngineImpl::CountHeld(const Sequence& sequence) const {
  if (sequence.kv == nullptr) return;
  const Sequence& first = sequence.first == nullptr ? sequence : *sequence.first;
  const uint32_t prompt = first.tokens();
  const bool in_blocks = layout_.exactness == Exactness::kInvariant;
  const auto shared = static_cast<int>(in_blocks ? prompt - prompt % layout_.chunk_tokens : 0);
  const uint64_t own = sequence.kv->held_bytes(shared);
  RequestState& state = *sequence.state;
  state.own_kv_bytes += own;
  state.shared_kv_bytes = std::max(state.shared_kv_bytes, sequence.kv->held_bytes(0) - own);
}

// With its last sample a request is over.
void EngineImpl::Finish(const SequencePtr& sequence, FinishReason reason) {
  keeper_.KeepAnswer(sequence.get(), cache());
  RequestState& state = *sequence->state;
  CountHeld(*sequence);
  state.ends[sequence->sample] = {reason, sequence->answer.generated, Digest{}};
  Leave(sequence.get());
  if (--state.unfinished > 0) return Left();
  counters_.Add(EngineCounter::kRequestsFinished);
  const Sequence& first = sequence->first == nullptr ? *sequence : *sequence->first;
  const absl::Time now = absl::Now();
  const absl::Time token =
      first.generates() ? first.times.first_token_at : first.times.prefilled_at;
  FinishedInfo info;
  info.reason = state.ends[0].reason;
  for (const SampleEnd& end : state.ends) info.generated_tokens += end.generated_tokens;
  info.samples = state.ends;
  info.computed_tokens = first.computed_tokens;
  info.kv_bytes = state.own_kv_bytes + state.shared_kv_bytes;
  info.exactness = layout_.exactness;
  info.queue_ms = Milliseconds(first.submitted_at, first.times.admitted_at);
  info.fetch_ms = Milliseconds(first.times.admitted_at, first.times.restored_at);
  info.prefill_ms = Milliseconds(first.times.restored_at, first.times.prefilled_at);
  info.ttft_ms = Milliseconds(first.submitted_at, token);
  info.total_ms = Milliseconds(first.submitted_at, now);
  TellFinished(sequence, std::move(info));
}

// Once all digests are made, by whoever makes the last of them.
void EngineImpl::TellFinished(const SequencePtr& sequence, FinishedInfo info) {
  struct Telling {
    FinishedInfo info;
    std::atomic<size_t> left{1};
  };
  auto telling = std::make_shared<Telling>();
  telling->info = std::move(info);
  const auto one_made = [this, sequence, telling] {
    if (--telling->left > 0) return;
    const Sequence& first = sequence->first == nullptr ? *sequence : *sequence->first;
    if (first.callbacks.on_finished != nullptr) first.callbacks.on_finished(telling->info);
    if (first.kept.published != nullptr) first.kept.published->OnFinished();
    Left();
  };
  const auto& digests = sequence->state->digests;
  for (size_t sample = 0; sample < digests.size(); ++sample) {
    if (digests[sample] == nullptr) continue;
    ++telling->left;
    digests[sample]->Finish([sample, telling, one_made](const LogitsDigest::Digests& made) {
      if (sample == 0) telling->info.first_logits_sha256 = made.first;
      telling->info.samples[sample].logits_sha256 = made.all;
      one_made();
    });
  }
  one_made();
}

void EngineImpl::Fail(const SequencePtr& sequence, const absl::Status& status) {
  Leave(sequence.get());
  if (std::exchange(sequence->state->failed, true)) return Left();  // another sample said so
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnavailable:
      counters_.Add(EngineCounter::kRequestsCancelled);
      break;
    case absl::StatusCode::kDeadlineExceeded:
      counters_.Add(EngineCounter::kRequestsExpired);
      break;
    default:
      counters_.Add(EngineCounter::kRequestsFailed);
  }
  if (sequence->callbacks.on_error != nullptr) sequence->callbacks.on_error(status);
  Left();
}

}  // namespace hearth
