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

// `objects` in ascending order.
PublishRequestSpec SpecFor(const Sequence& sequence, std::vector<uint32_t> boundaries,
                           KvObjects objects) {
  // Tokens after the last boundary are the request's own and stay here.
  const uint32_t end = boundaries.back();
  const PrefixRequest& prefix = sequence.prefix;
  PublishRequestSpec spec;
  spec.prefix.tenant = prefix.tenant;
  spec.prefix.request_id = prefix.request_id;
  spec.prefix.token_ids.assign(prefix.token_ids.begin(), prefix.token_ids.begin() + end);
  for (uint32_t cut : prefix.cuts) {
    if (cut <= end) spec.prefix.cuts.push_back(cut);
  }
  spec.boundaries = std::move(boundaries);
  spec.objects = std::move(objects);
  spec.durability = sequence.request.durability;
  spec.ttl_s = sequence.request.ttl_s;
  return spec;
}

}  // namespace

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
  const uint32_t end = sequence->step_ends[sequence->next_step];
  assert(begin < end && end <= sequence->tokens());
  const bool last = sequence->next_step + 1 == sequence->step_ends.size();
  std::vector<float>* logits = last && sequence->generates() ? &sequence->logits : nullptr;
  const auto step = absl::MakeConstSpan(sequence->request.token_ids).subspan(begin, end - begin);
  if (absl::Status status = model_->Step(sequence->kv.get(), step, logits); !status.ok()) {
    return absl::InternalError(status.message());
  }
  counters_.Add(EngineCounter::kPrefillSteps);
  counters_.Add(EngineCounter::kComputedTokens, end - begin);
  sequence->computed_tokens += end - begin;
  if (sequence->staged != nullptr) sequence->staged->Record(*sequence->kv, begin, end);
  sequence->position = end;
  ++sequence->next_step;
  if (sequence->lease != nullptr) KeepPassed(sequence.get());
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
  if (absl::Status status =
          model_->Step(sequence->kv.get(), {&sequence->last_token, 1}, &sequence->logits);
      !status.ok()) {
    return absl::InternalError(status.message());
  }
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
  counters_.Add(EngineCounter::kGeneratedTokens);
  const auto& on_token = sequence->callbacks.on_token;
  if (on_token != nullptr && !on_token(*token)) return FinishReason::kStop;
  if (sequence->generated == sequence->request.max_new_tokens) return FinishReason::kLength;
  return std::optional<FinishReason>();
}

// Others wait for what a lease promises: each kept boundary goes out as soon as it is passed.
// Before the very last step it does not: it would slow the first token, and soon goes out after it.
void EngineImpl::KeepPassed(Sequence* sequence) {
  if (sequence->next_step + 1 >= sequence->step_ends.size()) return;
  const std::vector<uint32_t>& boundaries = sequence->staged->boundaries();
  const uint32_t passed = sequence->position;
  if (!std::binary_search(boundaries.begin(), boundaries.end(), passed)) return;
  if (passed == boundaries.back()) return Keep(sequence);
  PoolKept(*sequence, passed);
  PrefixCache* cache = nullptr;
  {
    absl::MutexLock lock(&mu_);
    cache = cache_;
  }
  if (cache == nullptr) return;
  // The bytes stay accounted to the sequence, which offers them again with the rest.
  PublishJob job;
  job.spec = SpecFor(*sequence, {passed}, sequence->staged->ObjectsOf(passed));
  job.done = [](const PublishOutcome&) {};
  publisher_.Submit(cache, std::move(job));
}

// What is lent becomes the worker's own, now that nobody waits for a token of it, when the pool has
// a place for it. kDataLoss: it is not what was verified, and so may be what was restored.
absl::Status EngineImpl::OwnRestored(Sequence* sequence) {
  KvObjects& restored = sequence->restored;
  uint64_t lent_bytes = 0;
  for (const auto& object : restored) {
    if (object->loan != nullptr) lent_bytes += object->size_bytes;
  }
  if (lent_bytes == 0) return absl::OkStatus();
  const bool fits = lent_bytes <= options_.pool_bytes;
  const uint32_t boundary = sequence->restored_boundary;
  if (!fits || pool_.Lookup(sequence->prefix, boundary).boundary == boundary) {
    restored = WithoutLent(restored);  // the store has it
    return absl::OkStatus();
  }
  absl::StatusOr<KvObjects> own = CopyLent(layout_, restored);
  restored = own.ok() ? *own : WithoutLent(restored);
  if (!own.ok()) {
    counters_.Add(EngineCounter::kLentNotKept);
    return absl::IsDataLoss(own.status()) ? own.status() : absl::OkStatus();
  }
  sequence->staged->OwnRestored(restored);
  PoolRestored(*sequence);
  return absl::OkStatus();
}

void EngineImpl::Keep(Sequence* sequence) {
  if (sequence->staged == nullptr) return;  // it was over before the prompt was
  const absl::Status owned = OwnRestored(sequence);
  if (!owned.ok()) {
    counters_.Add(EngineCounter::kLentChanged);
    PublishOutcome nothing;
    nothing.note = absl::StrCat("nothing of it is kept: ", owned.message());
    if (sequence->published != nullptr) sequence->published->OnOutcome(nothing);
  } else if (sequence->writes()) {
    PrefixCache* cache = nullptr;
    {
      absl::MutexLock lock(&mu_);
      cache = cache_;
    }
    for (uint32_t boundary : sequence->staged->boundaries()) PoolKept(*sequence, boundary);
    Publish(sequence, cache);
  }
  sequence->staged.reset();
  sequence->lease.reset();  // the publish has its own
  sequence->restored.clear();
}

void EngineImpl::PoolKept(const Sequence& sequence, uint32_t boundary) {
  const KvObjects objects = sequence.staged->ObjectsOf(boundary);
  if (!MayBeKept(objects)) return;
  switch (pool_.Insert(sequence.prefix, boundary, objects)) {
    case PrefixPool::InsertResult::kInserted:
      counters_.Add(EngineCounter::kPoolInserts);
      break;
    case PrefixPool::InsertResult::kDiffers:
      counters_.Add(EngineCounter::kNondeterminism);
      break;
    case PrefixPool::InsertResult::kPresent:
    case PrefixPool::InsertResult::kTooLarge:
      break;
  }
}

void EngineImpl::Publish(Sequence* sequence, PrefixCache* cache) {
  const std::shared_ptr<PublishedNotice> notice = sequence->published;
  const uint32_t skipped = sequence->staged->skipped();
  const auto done = [notice, skipped](PublishOutcome outcome) {
    if (skipped > 0) {
      absl::StrAppend(&outcome.note, outcome.note.empty() ? "" : "; ", skipped,
                      " boundaries were left out: staging-bytes is in use");
    }
    if (notice != nullptr) notice->OnOutcome(outcome);
  };
  std::vector<uint32_t> boundaries = sequence->staged->boundaries();
  KvObjects offered;
  std::set<ObjectId> included;
  const auto include = [&](const KvObjects& objects) {
    for (const auto& object : objects) {
      if (included.insert(object->id).second) offered.push_back(object);
    }
  };
  // What came from the pool is offered again: the store may have lost it since, and learns that it
  // is in use. So is a restored point when there is nothing new, to learn how durable it is.
  const bool offer_restored = sequence->restored_boundary > 0 &&
                              (sequence->restored_from == Tier::kWorker || boundaries.empty());
  if (offer_restored) {
    include(sequence->restored);
    boundaries.insert(boundaries.begin(), sequence->restored_boundary);
  }
  for (uint32_t boundary : sequence->staged->boundaries()) {
    include(sequence->staged->ObjectsOf(boundary));
  }
  if (cache == nullptr || boundaries.empty()) {
    PublishOutcome nothing;
    if (cache == nullptr) {
      nothing.note = "the worker has no store";
    } else if (skipped == 0) {
      nothing.note = "no boundary to keep";
    }
    return done(nothing);
  }
  std::sort(offered.begin(), offered.end(),
            [](const auto& a, const auto& b) { return a->id < b->id; });
  PublishJob job;
  job.spec = SpecFor(*sequence, std::move(boundaries), std::move(offered));
  job.done = done;
  job.lease = sequence->staged->TakeLease();
  job.compute_lease = std::move(sequence->lease);
  publisher_.Submit(cache, std::move(job));
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
}

void EngineImpl::Left() {
  absl::MutexLock lock(&mu_);
  assert(active_ >= 1);
  --active_;
}

void EngineImpl::Finish(const SequencePtr& sequence, FinishReason reason) {
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
