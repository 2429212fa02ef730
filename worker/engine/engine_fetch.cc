// EngineImpl, from a sequence's place to what a cache has: whether it is asked, and for how long.

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "proto/restore_rule.h"
#include "worker/engine/engine_impl.h"
#include "worker/engine/runner/kv_snapshot.h"

namespace hearth {

void EngineImpl::LookUp(const SequencePtr& sequence) {
  sequence->admitted_at = absl::Now();
  PrefixCache* const cache = this->cache();
  const uint32_t max_boundary = sequence->max_boundary();
  const std::vector<uint32_t> candidates =
      RestoreCandidates(max_boundary, sequence->prefix.cuts, layout_.chunk_tokens);
  uint32_t best = candidates.empty() ? 0 : candidates.back();
  if (!CutsAreKeyed(layout_.exactness)) best = max_boundary;
  if (!sequence->reads() || best == 0) return Begin(sequence);

  if (cache == nullptr || sequence->pooled.boundary == best) return Begin(sequence);
  if (options_.load == LoadChoice::kNever) return Begin(sequence);
  ArmLoad(sequence);
  if (sequence->prefix.load->WorthAsking(best, BytesTo(best))) return Fetch(sequence, cache);
  counters_.Add(EngineCounter::kLoadsUnasked);
  if (auto probe = sequence->prefix.load->TakeProbe(); probe != nullptr) {
    const uint32_t above_tokens = sequence->pooled.boundary;
    fetches_.Submit([this, prefix = sequence->prefix, probe, cache, above_tokens,
                     max_boundary](TaskQueue::Fate fate) {
      if (fate == TaskQueue::Fate::kRun) Probe(prefix, probe, cache, above_tokens, max_boundary);
    });
  }
  Begin(sequence);
}

// Tells the trial what the request is, and what is computed beside it.
void EngineImpl::ArmLoad(const SequencePtr& sequence) {
  LoadTrial::Work work;
  work.have_tokens = sequence->pooled.boundary;
  work.tokens = sequence->tokens();
  work.step_tokens = model_->step_tokens(layout_);
  work.budget = options_.fetch_budget;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, other] : sequences_) {
      if (other->generated > 0) work.step_tokens = step_rows();
      if (other->step_ends.empty() || other->position >= other->step_ends.back()) continue;
      work.beside.push_back(other->step_ends.back() - other->position);
    }
  }
  const auto extend = [this, weak = std::weak_ptr<Sequence>(sequence)](absl::Duration most) {
    const SequencePtr awaited = weak.lock();
    if (awaited == nullptr) return;
    absl::MutexLock lock(&mu_);
    absl::Time& deadline = awaited->fetch_deadline;
    if (awaited->fetch_state == FetchState::kWaiting) {
      deadline = std::max(deadline, absl::Now() + most);
    }
  };
  sequence->prefix.load->Arm(&loads_, std::move(work), extend);
}

uint64_t EngineImpl::BytesTo(uint32_t boundary) const {
  uint64_t bytes = 0;
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    uint32_t tokens = 0;
    for (const ObjectId& id : NeededObjects(layout_, boundary)) {
      if (id.group == group) tokens += id.tokens;
    }
    bytes += layout_.ObjectBytes(tokens, group);
  }
  return bytes;
}

LoadReport EngineImpl::EstimateLoad(uint32_t boundary) const {
  // A number out of a message: no prompt is longer than the context.
  boundary = std::min(boundary, static_cast<uint32_t>(model_->config().max_position_embeddings));
  LoadReport report;
  report.bytes = BytesTo(boundary);
  report.load_estimate = loads_.LeastLoadTime(report.bytes);
  report.compute_estimate = loads_.ComputeTime(0, boundary, model_->step_tokens(layout_));
  if (report.load_estimate.has_value() && report.compute_estimate.has_value()) {
    const bool loads = *report.load_estimate <= *report.compute_estimate;
    report.decision = loads ? LoadDecision::kLoad : LoadDecision::kCompute;
  }
  return report;
}

// On a fetch thread, with nobody waiting.
void EngineImpl::Probe(PrefixRequest prefix, std::shared_ptr<LoadTrial> probe, PrefixCache* cache,
                       uint32_t above_tokens, uint32_t max_tokens) {
  counters_.Add(EngineCounter::kLoadProbes);
  prefix.stop = nullptr;
  prefix.load = std::move(probe);
  try {
    cache->Fetch(prefix, above_tokens, max_tokens, absl::Now() + options_.fetch_budget);
  } catch (const std::exception&) {
    prefix.load->OnFailed();  // a probe that fails says nothing
  }
}

void EngineImpl::Fetch(const SequencePtr& sequence, PrefixCache* cache) {
  counters_.Add(EngineCounter::kFetches);
  const uint32_t above_tokens = sequence->pooled.boundary;
  const absl::Time deadline = sequence->admitted_at + options_.fetch_budget;
  {
    absl::MutexLock lock(&mu_);
    sequence->fetch_state = FetchState::kWaiting;
    sequence->fetch_deadline = deadline;
  }
  const auto fetch = [this, sequence, cache, above_tokens, deadline](TaskQueue::Fate fate) {
    Fetched fetched;
    try {
      if (fate == TaskQueue::Fate::kRun) {
        fetched = FetchInTurn(sequence, cache, above_tokens, deadline);
      }
    } catch (const std::exception& error) {
      fetched = Fetched();
      fetched.outcome.note = error.what();
    }
    // Settled before the engine goes on with it.
    std::shared_ptr<LoadTrial> probe;
    if (fetched.load != nullptr) probe = fetched.load->TakeProbe();
    {
      absl::MutexLock lock(&mu_);
      if (sequence->fetch_state != FetchState::kWaiting) return;  // given up: computed instead
      sequence->fetched = std::move(fetched);
      sequence->fetch_state = FetchState::kDone;
      bell_.Signal();
    }
    if (probe != nullptr) {
      Probe(sequence->prefix, std::move(probe), cache, above_tokens, sequence->max_boundary());
    }
  };
  if (fetches_.Submit(fetch)) return;
  // Every thread waits for a slow cache already: go on without it.
  {
    absl::MutexLock lock(&mu_);
    sequence->fetch_state = FetchState::kGivenUp;
  }
  counters_.Add(EngineCounter::kFetchTimeouts);
  Begin(sequence);
}

// Whether anybody still wants what is fetched: the request may be cancelled, or have gone on.
bool EngineImpl::IsAwaited(const Sequence& sequence) const {
  absl::MutexLock lock(&mu_);
  return sequence.fetch_state == FetchState::kWaiting;
}

// On a fetch thread: what the cache has, after a wait for what another is computing.
Fetched EngineImpl::FetchInTurn(const SequencePtr& sequence, PrefixCache* cache,
                                uint32_t above_tokens, absl::Time deadline) {
  const PrefixRequest& prefix = sequence->prefix;
  const uint32_t max_boundary = sequence->max_boundary();
  Fetched fetched;
  fetched.load = prefix.load;
  FetchOutcome& outcome = fetched.outcome;
  const absl::Time patience = absl::Now() + prefix.load->PlanPatience();
  outcome = cache->Fetch(prefix, above_tokens, max_boundary, std::min(deadline, patience));
  const LoadReport load = prefix.load->report();
  if (load.decision == LoadDecision::kAbandoned || load.plan_was_late) {
    // The link is slow, or full of what was cut off, or the store is silent: each word to it would
    // cost the request.
    outcome.declined_tokens = load.boundary;
    return fetched;
  }
  uint32_t have = std::max({above_tokens, outcome.usable_tokens, outcome.declined_tokens});
  // A load may have been worth more than the budget.
  if (absl::Now() > deadline) deadline = absl::Now() + options_.fetch_budget;
  LeaseTerms terms{options_.compute_lease, options_.compute_wait, options_.compute_min_tokens};
  if (!sequence->writes()) terms.lease = absl::ZeroDuration();
  const bool takes_part = std::max(terms.lease, terms.wait) > absl::ZeroDuration();
  if (!takes_part || max_boundary < have + terms.min_tokens) return fetched;
  {
    absl::MutexLock lock(&mu_);
    if (sequence->fetch_state != FetchState::kWaiting) return fetched;
    // The cache keeps to the parts of it: an answer by `deadline`, a wait, another fetch.
    absl::Time& all = sequence->fetch_deadline;
    all = std::max(all, deadline + terms.wait + options_.fetch_budget);
  }
  // A loan is bounded in time, and the wait by its own budget.
  if (!OwnFetched(&outcome)) have = above_tokens;
  LeaseOutcome turn = cache->Lease(prefix, have, max_boundary, terms, deadline);
  fetched.lease = std::move(turn.lease);
  const uint32_t matched = std::max(outcome.matched_tokens, turn.matched_tokens);
  if (turn.usable_tokens > have && IsAwaited(*sequence)) {
    if (keeper_.pool().Lookup(prefix, max_boundary).boundary >= turn.usable_tokens) {
      fetched.pool_again = true;  // computed beside this one: no need to carry it
    } else {
      PrefixRequest again = prefix;
      again.load = prefix.load->Next(have);
      FetchOutcome now =
          cache->Fetch(again, have, max_boundary, absl::Now() + options_.fetch_budget);
      const LoadReport found = again.load->report();
      if (found.decision == LoadDecision::kAbandoned) now.declined_tokens = found.boundary;
      // What the first one brought is of use where this one brings nothing.
      if (now.usable_tokens > 0 || (outcome.usable_tokens == 0 && now.declined_tokens > 0)) {
        outcome = std::move(now);
        fetched.load = again.load;
      }
    }
  }
  outcome.matched_tokens = std::max(outcome.matched_tokens, matched);
  return fetched;
}

// Copies what is lent. False: that was too late, and nothing is left.
bool EngineImpl::OwnFetched(FetchOutcome* fetched) const {
  if (fetched->usable_tokens == 0) return true;
  // What does not fit the request is refused, and counted, where it is chosen.
  if (!CheckAndSortObjects(layout_, fetched->usable_tokens, &fetched->objects).ok()) return true;
  absl::StatusOr<KvObjects> own = CopyLent(layout_, fetched->objects);
  if (own.ok()) {
    fetched->objects = *std::move(own);
    return true;
  }
  counters_.Add(EngineCounter::kRestoreFailures);
  fetched->usable_tokens = 0;
  fetched->objects.clear();
  return false;
}

}  // namespace hearth
