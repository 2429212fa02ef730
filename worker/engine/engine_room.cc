// EngineImpl, from the queue to a place: the memory that a sequence may come to need is set aside
// before it begins, so that what has begun ends.

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/engine/engine_impl.h"
#include "worker/model/invariant/kv_blocks.h"

namespace hearth {

void EngineImpl::LookUp(const SequencePtr& sequence) {
  sequence->admitted_at = absl::Now();
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
  work.budget = options_.fetch_budget;
  absl::MutexLock lock(&mu_);
  for (const auto& [id, other] : sequences_) {
    if (other->generated > 0) work.step_tokens = step_rows();
    if (other->step_ends.empty() || other->position >= other->step_ends.back()) continue;
    work.beside.push_back(other->step_ends.back() - other->position);
  }
  return work;
}

LoadReport EngineImpl::EstimateLoad(uint32_t boundary) const {
  // A number out of a message: no prompt is longer than the context.
  const auto most = static_cast<uint32_t>(model_->config().max_position_embeddings);
  return fetcher_.Estimate(std::min(boundary, most), model_->step_tokens(layout_));
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

void EngineImpl::AdmitWaiting() {
  if (LackingIsOver()) lacking_.tried.clear();
  while (const SequencePtr sequence = Candidate()) {
    const uint64_t free_bytes = model_->kv_bytes().free(), releases = releases_;
    absl::Status room;
    try {
      room = ReserveFor(sequence.get());
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

// With what the pool has of it, which needs no memory of its own; without, where there is no other
// way and nobody else to wait for.
absl::Status EngineImpl::ReserveFor(Sequence* sequence) {
  if (sequence->reads()) {
    sequence->pooled = keeper_.pool().Lookup(sequence->prefix, sequence->max_boundary());
  }
  const auto reserve = [&] {
    const uint32_t tokens = sequence->tokens() + sequence->request.max_new_tokens;
    absl::StatusOr<std::unique_ptr<SequenceKv>> kv =
        model_->NewKv(static_cast<int>(tokens), sequence->pooled.objects);
    if (!kv.ok()) return kv.status();
    if (sequence->request.samples > 1) {
      auto forks = model_->NewForks(kv->get(), static_cast<int>(sequence->tokens()),
                                    static_cast<int>(tokens), sequence->request.samples - 1);
      if (!forks.ok()) {
        model_->Release(*std::move(kv));
        return forks.status();
      }
      sequence->fork_kvs = *std::move(forks);
    }
    sequence->kv = *std::move(kv);
    return absl::OkStatus();
  };
  absl::Status room = WithRoom(reserve);
  {
    absl::MutexLock lock(&mu_);
    if (scheduler_.running() > 0) return room;
  }
  while (absl::IsResourceExhausted(room) && keeper_.publisher().DropOldest())
    room = WithRoom(reserve);
  if (absl::IsResourceExhausted(room) && sequence->pooled.boundary > 0) {
    sequence->pooled.boundary = 0;
    sequence->pooled.objects.clear();
    room = WithRoom(reserve);
  }
  return room;
}

// What there is no memory for is tried again without the audit that waits for an idle moment, and
// with less in the pool: where these hold what is lacking. Else nobody gives anything up.
absl::Status EngineImpl::WithRoom(absl::FunctionRef<absl::Status()> use) {
  absl::Status status = use();
  if (!absl::IsResourceExhausted(status)) return status;
  const auto frees = [&](const KvObject& object) { return model_->FreesKvBytes(object); };
  if (const std::optional<uint64_t> lacking = LackingKvBytes(status); lacking.has_value()) {
    const uint64_t most = keeper_.pool().EvictableBytes(frees, *lacking) + audit_.set_aside_bytes();
    if (*lacking > most) return status;
  }
  if (audit_.is_under_way()) {
    audit_.Skip();
    status = use();
  }
  while (absl::IsResourceExhausted(status) && keeper_.pool().EvictOne(frees)) status = use();
  return status;
}

// For blocks that others will hold when the sequence has left them.
bool EngineImpl::ReserveShared(Sequence* sequence, uint64_t bytes) {
  return WithRoom([&] { return model_->ReserveMore(sequence->kv.get(), bytes); }).ok();
}

}  // namespace hearth
