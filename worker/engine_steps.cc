// EngineImpl, from a sequence's first step to its end.

#include <algorithm>
#include <cassert>
#include <exception>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/engine_impl.h"

namespace hearth {
namespace {

double Milliseconds(absl::Time begin, absl::Time end) {
  return absl::ToDoubleMilliseconds(end - begin);
}

Digest LogitsDigest(const std::vector<float>& logits) {
  return Sha256(absl::string_view(reinterpret_cast<const char*>(logits.data()),
                                  logits.size() * sizeof(float)));
}

// A caller may come again when there is room; anything else is the worker's fault.
absl::Status StepError(const absl::Status& status) {
  return absl::IsResourceExhausted(status) ? status : absl::InternalError(status.message());
}

}  // namespace

// The last of the planned steps that are taken as one: several where nobody waits for their end,
// and bits do not depend on it.
size_t EngineImpl::LastStepOf(const Sequence& sequence) const {
  size_t last = sequence.next_step;
  if (layout_.exactness != Exactness::kInvariant) return last;
  {
    absl::MutexLock lock(&mu_);
    if (scheduler_.running() > 1) return last;
  }
  const uint32_t most = sequence.position + model_->step_tokens(layout_);
  const std::vector<uint32_t>& ends = sequence.step_ends;
  while (last + 1 < ends.size() && ends[last + 1] <= most) ++last;
  return last;
}

void EngineImpl::Step(const SequencePtr& sequence, StepKind kind) {
  absl::Status status;
  try {
    status = kind == StepKind::kPrefill ? StepPrefill(sequence) : StepDecode(sequence);
  } catch (const std::exception& error) {
    status = absl::InternalError(error.what());
  }
  if (!status.ok()) Fail(sequence, status);
}

absl::Status EngineImpl::StepPrefill(const SequencePtr& sequence) {
  assert(sequence->next_step < sequence->step_ends.size());
  const uint32_t begin = sequence->position;
  const size_t next_step = LastStepOf(*sequence) + 1;
  const uint32_t end = sequence->step_ends[next_step - 1];
  assert(begin < end && end <= sequence->tokens());
  const bool last = next_step == sequence->step_ends.size();
  std::vector<float>* logits = last && sequence->generates() ? &sequence->logits : nullptr;
  const auto step = absl::MakeConstSpan(sequence->request.token_ids).subspan(begin, end - begin);
  const absl::Status status =
      WithRoom([&] { return model_->Step(sequence->kv.get(), step, logits); });
  if (!status.ok()) return StepError(status);
  counters_.Add(EngineCounter::kPrefillSteps);
  counters_.Add(EngineCounter::kComputedTokens, end - begin);
  sequence->computed_tokens += end - begin;
  if (sequence->staged != nullptr) sequence->staged->Record(*sequence->kv, begin, end);
  sequence->position = end;
  sequence->next_step = next_step;
  if (sequence->lease != nullptr) KeepPassed(sequence.get(), begin);
  return last ? FinishPrefill(sequence) : absl::OkStatus();
}

absl::Status EngineImpl::FinishPrefill(const SequencePtr& sequence) {
  sequence->prefilled_at = absl::Now();
  if (!sequence->generates()) {
    Keep(sequence.get());
    Finish(sequence, FinishReason::kLength);
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<FinishReason>> finished = Emit(sequence.get());
  if (!finished.ok()) return finished.status();
  // After the token is out: neither the digest nor the copies belong to its latency.
  sequence->first_logits_sha256 = LogitsDigest(sequence->logits);
  Keep(sequence.get());
  if (finished->has_value()) {
    Finish(sequence, **finished);
    return absl::OkStatus();
  }
  absl::MutexLock lock(&mu_);
  scheduler_.StartDecode(sequence->id);
  return absl::OkStatus();
}

absl::Status EngineImpl::StepDecode(const SequencePtr& sequence) {
  assert(sequence->generated >= 1);
  // One row, whatever else decodes: another sequence must not change this one's bits.
  const absl::Status status = WithRoom([&] {
    return model_->Step(sequence->kv.get(), {&sequence->last_token, 1}, &sequence->logits);
  });
  if (!status.ok()) return StepError(status);
  counters_.Add(EngineCounter::kDecodeSteps);
  absl::StatusOr<std::optional<FinishReason>> finished = Emit(sequence.get());
  if (!finished.ok()) return finished.status();
  if (finished->has_value()) Finish(sequence, **finished);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<FinishReason>> EngineImpl::Emit(Sequence* sequence) {
  absl::StatusOr<SampledToken> token =
      sequence->sampler.Sample(sequence->logits, sequence->request.sampling, sequence->generated);
  if (!token.ok()) return token.status();
  if (sequence->generated == 0) sequence->first_token_at = absl::Now();
  const std::vector<int32_t>& eos = config().eos_token_ids;
  if (!sequence->request.ignore_eos && std::binary_search(eos.begin(), eos.end(), token->id)) {
    return FinishReason::kEos;
  }
  ++sequence->generated;
  sequence->last_token = token->id;
  sequence->answer.push_back(token->id);
  counters_.Add(EngineCounter::kGeneratedTokens);
  const auto& on_token = sequence->callbacks.on_token;
  if (on_token != nullptr && !on_token(*token)) return FinishReason::kStop;
  if (sequence->generated == sequence->request.max_new_tokens) return FinishReason::kLength;
  return std::optional<FinishReason>();
}

// Frees the sequence's place and memory. Callbacks come after it, Left() after them.
void EngineImpl::Leave(Sequence* sequence) {
  if (sequence->kv != nullptr) model_->Release(std::move(sequence->kv));
  sequence->staged.reset();
  sequence->lease.reset();
  sequence->restored.clear();
  sequence->pooled.objects.clear();
  FetchOutcome unused;  // what it lends is given back once the lock is released
  absl::MutexLock lock(&mu_);
  std::swap(sequence->fetched, unused);
  scheduler_.Remove(sequence->id);
  sequences_.erase(sequence->id);
  sequence->fetch_state = FetchState::kGivenUp;
  ++releases_;
}

void EngineImpl::Left() {
  absl::MutexLock lock(&mu_);
  assert(active_ >= 1);
  --active_;
}

void EngineImpl::Finish(const SequencePtr& sequence, FinishReason reason) {
  KeepAnswer(sequence.get());
  Leave(sequence.get());
  counters_.Add(EngineCounter::kRequestsFinished);
  const absl::Time now = absl::Now();
  const absl::Time first =
      sequence->generates() ? sequence->first_token_at : sequence->prefilled_at;
  FinishedInfo info;
  info.reason = reason;
  info.generated_tokens = sequence->generated;
  info.computed_tokens = sequence->computed_tokens;
  info.queue_ms = Milliseconds(sequence->submitted_at, sequence->admitted_at);
  info.fetch_ms = Milliseconds(sequence->admitted_at, sequence->restored_at);
  info.prefill_ms = Milliseconds(sequence->restored_at, sequence->prefilled_at);
  info.ttft_ms = Milliseconds(sequence->submitted_at, first);
  info.total_ms = Milliseconds(sequence->submitted_at, now);
  info.first_logits_sha256 = sequence->first_logits_sha256;
  if (sequence->callbacks.on_finished != nullptr) sequence->callbacks.on_finished(info);
  if (sequence->published != nullptr) sequence->published->OnFinished();
  Left();
}

void EngineImpl::Fail(const SequencePtr& sequence, const absl::Status& status) {
  Leave(sequence.get());
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
