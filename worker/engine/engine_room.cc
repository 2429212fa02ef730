// EngineImpl, from the queue to a place, and from there to the first step.

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/engine/engine_impl.h"

namespace hearth {

void EngineImpl::LookUp(const SequencePtr& sequence) {
  sequence->times.admitted_at = absl::Now();
  PrefixCache* const cache = this->cache();
  if (cache == nullptr || !fetcher_.MayHaveMore(*sequence) ||
      !fetcher_.LookUp(sequence, cache, WorkOf(*sequence))) {
    Begin(sequence);
  }
}

// What the request is, and what is computed beside it.
LoadTrial::Work EngineImpl::WorkOf(const Sequence& sequence) const {
  LoadTrial::Work work;
  work.have_tokens = sequence.pooled.boundary;
  work.tokens = sequence.tokens();
  work.step_tokens = model_->step_tokens(layout_);
  work.budget = options_.cache.fetch_budget;
  absl::MutexLock lock(&mu_);
  for (const auto& [id, other] : sequences_) {
    if (other->answer.generated > 0) work.step_tokens = step_rows();
    if (model_->batches() || other->step_ends.empty()) continue;
    const uint32_t end = other->step_ends.back();
    if (other->position < end) work.beside.push_back(end - other->position);
  }
  if (model_->batches()) {
    PrefillsBeside beside = scheduler_.Beside(sequence.request.tenant);
    work.oldest = beside.oldest;
    work.promised = beside.promised;
    work.by_length = std::move(beside.by_length);
    work.tenants = std::move(beside.tenants);
  }
  return work;
}

LoadReport EngineImpl::EstimateLoad(uint32_t boundary) const {
  // A number out of a message: no prompt is longer than the context.
  const auto most = static_cast<uint32_t>(model_->config().max_position_embeddings);
  return fetcher_.Estimate(std::min(boundary, most), model_->step_tokens(layout_));
}

void EngineImpl::Begin(const SequencePtr& sequence) {
  Fetched taken;
  if (std::optional<Fetched> arrived = sequence->fetch.Take(); arrived.has_value()) {
    taken = *std::move(arrived);
    const FetchOutcome& outcome = taken.outcome;
    if (outcome.usable_tokens == 0 && outcome.declined_tokens == 0 && !taken.pool_again) {
      counters_.Add(EngineCounter::kFetchMisses);
    }
  }
  StopWaiting(sequence.get());  // where it took longer than it may
  FetchOutcome& fetched = taken.outcome;
  sequence->kept.lease = std::move(taken.lease);
  LoadTrial& load = taken.load != nullptr ? *taken.load : *sequence->prefix.load;
  if (taken.pool_again) {
    sequence->pooled = keeper_.pool().Lookup(sequence->prefix, sequence->max_boundary());
    if (sequence->pooled.boundary >= fetched.usable_tokens) fetched.usable_tokens = 0;
  }
  uint32_t& matched = sequence->pooled.matched_tokens;
  matched = std::max(matched, std::min(fetched.matched_tokens, sequence->tokens()));
  const absl::Time chosen_at = fetcher_.loads()->Now();
  const absl::Status status =
      restorer_.Restore(sequence.get(), std::move(fetched), cache() != nullptr);
  if (!status.ok()) return Fail(sequence, status);
  fetcher_.NoteLoad(*sequence, fetcher_.loads()->Now() - chosen_at, &load);
  keeper_.PoolRestored(*sequence);
  audit_.Offer(*sequence);
  sequence->times.restored_at = absl::Now();
  if (sequence->callbacks.on_started != nullptr) {
    sequence->callbacks.on_started({sequence->tokens(), sequence->restored.boundary, matched,
                                    sequence->restored.from, load.report()});
  }
  {
    absl::MutexLock lock(&mu_);
    if (!sequence->step_ends.empty()) {
      return scheduler_.StartPrefill(sequence->id, sequence->step_ends.back() - sequence->position,
                                     sequence->request.tenant,
                                     /*promised=*/sequence->kept.lease != nullptr);
    }
  }
  if (absl::Status finished = FinishPrefill(sequence); !finished.ok()) Fail(sequence, finished);
}

// Those that found no memory are tried again when somebody has let some go.
bool EngineImpl::MayAdmit() const {
  const std::vector<SequenceId> candidates = scheduler_.Candidates();
  if (candidates.empty()) return false;
  if (LackingIsOver()) return true;
  return std::any_of(candidates.begin(), candidates.end(),
                     [&](SequenceId id) { return lacking_.tried.count(id) == 0; });
}

bool EngineImpl::LackingIsOver() const {
  return releases_ != lacking_.releases || model_->kv_bytes().free() > lacking_.free_bytes;
}

EngineImpl::SequencePtr EngineImpl::Candidate() const {
  absl::MutexLock lock(&mu_);
  for (const SequenceId id : scheduler_.Candidates()) {
    if (lacking_.tried.count(id) == 0) return sequences_.at(id);
  }
  return nullptr;
}

bool EngineImpl::RunsNobody() const {
  absl::MutexLock lock(&mu_);
  return scheduler_.running() == 0;
}

void EngineImpl::AdmitWaiting() {
  if (LackingIsOver()) lacking_.tried.clear();
  while (const SequencePtr sequence = Candidate()) {
    const uint64_t free_bytes = model_->kv_bytes().free(), releases = releases_;
    absl::Status room;
    try {
      room = room_.ReserveFor(sequence.get(), RunsNobody());
    } catch (const std::exception& error) {
      room = absl::InternalError(absl::StrCat("memory for keys and values: ", error.what()));
    }
    if (absl::IsResourceExhausted(room) && model_->kv_bytes().budget > 0) {
      // Of the first that was tried: what was let go since may be enough for it.
      if (lacking_.tried.empty()) {
        lacking_.free_bytes = free_bytes;
        lacking_.releases = releases;
      }
      lacking_.tried.insert(sequence->id);
      sequence->pooled = PooledPrefix();  // what it would hold meanwhile is others'
      continue;
    }
    if (!room.ok()) {
      Fail(sequence, room);
      continue;
    }
    {
      absl::MutexLock lock(&mu_);
      scheduler_.Admit(sequence->id);
    }
    LookUp(sequence);
  }
}

}  // namespace hearth
