#include "worker/engine/prefix_fetcher.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "proto/restore_rule.h"
#include "worker/engine/runner/kv_snapshot.h"

namespace hearth {

namespace {

// A fetch occupies a thread until its deadline, longer where it waits for another's computation;
// every running sequence may have one.
constexpr size_t kMaxFetchThreads = 64;

}  // namespace

PrefixFetcher::PrefixFetcher(const CacheTerms& terms, uint32_t max_running, const KvLayout& layout,
                             PrefixPool* pool, EngineCounters* counters, std::function<void()> ring)
    : terms_(terms),
      layout_(layout),
      pool_(pool),
      counters_(counters),
      ring_(std::move(ring)),
      loads_(terms.load, terms.load_clock),
      fetches_(std::min<size_t>(max_running, kMaxFetchThreads), max_running) {}

// The highest that could be restored.
uint32_t PrefixFetcher::BestBoundary(const Sequence& sequence) const {
  const uint32_t most = sequence.max_boundary();
  if (!CutsAreKeyed(layout_.exactness)) return most;
  const std::vector<uint32_t> candidates =
      RestoreCandidates(most, sequence.prefix.cuts, layout_.chunk_tokens);
  return candidates.empty() ? 0 : candidates.back();
}

bool PrefixFetcher::MayHaveMore(const Sequence& sequence) const {
  return sequence.reads() && terms_.load != LoadChoice::kNever &&
         sequence.pooled.boundary < BestBoundary(sequence);
}

bool PrefixFetcher::LookUp(const std::shared_ptr<Sequence>& sequence, PrefixCache* cache,
                           LoadTrial::Work work) {
  sequence->load = std::make_shared<LoadTrial>(&loads_, work);
  const uint32_t best = BestBoundary(*sequence);
  if (sequence->load->WorthAsking(best, BytesTo(best))) return Fetch(sequence, cache);
  counters_->Add(EngineCounter::kLoadsUnasked);
  return false;
}

uint64_t PrefixFetcher::BytesTo(uint32_t boundary) const {
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

LoadReport PrefixFetcher::Estimate(uint32_t boundary) const {
  LoadReport report;
  report.bytes = BytesTo(boundary);
  report.load_estimate = loads_.LoadTime(LoadSource::kCount, report.bytes);
  report.compute_estimate = loads_.ComputeTime(boundary);
  if (report.load_estimate.has_value() && report.compute_estimate.has_value()) {
    const bool loads = *report.load_estimate <= *report.compute_estimate;
    report.decision = loads ? LoadDecision::kLoad : LoadDecision::kCompute;
  }
  return report;
}

bool PrefixFetcher::Fetch(const std::shared_ptr<Sequence>& sequence, PrefixCache* cache) {
  counters_->Add(EngineCounter::kFetches);
  const uint32_t above_tokens = sequence->pooled.boundary;
  const absl::Time deadline = sequence->times.admitted_at + terms_.fetch_budget;
  sequence->fetch.Begin(sequence->times.admitted_at + sequence->load->MostTime());
  const auto fetch = [this, sequence, cache, above_tokens, deadline](TaskQueue::Fate fate) {
    Fetched fetched;
    try {
      if (fate == TaskQueue::Fate::kRun) {
        fetched = FetchInTurn(sequence.get(), cache, above_tokens, deadline);
      }
    } catch (const std::exception& error) {
      fetched = Fetched();
      fetched.outcome.note = error.what();
    }
    if (sequence->fetch.Deliver(std::move(fetched))) ring_();
  };
  if (fetches_.Submit(fetch)) return true;
  // Every thread waits for a slow cache already: go on without it.
  sequence->fetch.GiveUp();
  counters_->Add(EngineCounter::kFetchTimeouts);
  return false;
}

// On a fetch thread: what the cache has, after a wait for what another is computing.
Fetched PrefixFetcher::FetchInTurn(Sequence* sequence, PrefixCache* cache, uint32_t above_tokens,
                                   absl::Time deadline) {
  PrefixRequest prefix = sequence->prefix;
  prefix.load = sequence->load;
  const uint32_t max_boundary = sequence->max_boundary();
  Fetched fetched;
  fetched.load = prefix.load;
  FetchOutcome& outcome = fetched.outcome;
  const absl::Time patience = absl::Now() + prefix.load->PlanPatience();
  outcome = cache->Fetch(prefix, above_tokens, max_boundary, std::min(deadline, patience));
  const LoadReport load = prefix.load->report();
  if (load.decision == LoadDecision::kAbandoned || load.plan_was_late) {
    // The link is slow, or full of a transfer that was cut off, or the store is silent: each call
    // of it would cost the request time.
    outcome.declined_tokens = load.boundary;
    return fetched;
  }
  const uint32_t have = std::max({above_tokens, outcome.usable_tokens, outcome.declined_tokens});
  // A load may have been worth more than the budget.
  if (absl::Now() > deadline) deadline = absl::Now() + terms_.fetch_budget;
  LeaseTerms terms = terms_.compute;
  if (!sequence->writes()) terms.lease = absl::ZeroDuration();
  const bool takes_part = std::max(terms.lease, terms.wait) > absl::ZeroDuration();
  if (!takes_part || max_boundary < uint64_t{have} + terms.min_tokens) return fetched;
  // The cache keeps to the parts of it: an answer by `deadline`, a wait, another fetch.
  if (!sequence->fetch.PutOff(deadline + terms.wait + terms_.fetch_budget)) return fetched;
  LeaseOutcome turn = cache->Lease(prefix, have, max_boundary, terms, deadline);
  fetched.lease = std::move(turn.lease);
  const uint32_t matched = std::max(outcome.matched_tokens, turn.matched_tokens);
  if (turn.usable_tokens > have && sequence->fetch.IsAwaited()) {
    if (pool_->Lookup(prefix, max_boundary).boundary >= turn.usable_tokens) {
      fetched.pool_again = true;  // computed beside this one: no need to carry it
    } else {
      PrefixRequest again = prefix;
      // Declined objects are not here: without this fetch they are computed.
      LoadTrial::Work left = prefix.load->work();
      left.have_tokens = std::max(above_tokens, outcome.usable_tokens);
      again.load = std::make_shared<LoadTrial>(&loads_, left);
      FetchOutcome now = cache->Fetch(again, have, max_boundary, absl::Now() + terms_.fetch_budget);
      const LoadReport found = again.load->report();
      if (found.decision == LoadDecision::kAbandoned) now.declined_tokens = found.boundary;
      // The first fetch's objects are of use where this one brings nothing.
      if (now.usable_tokens > 0 || (outcome.usable_tokens == 0 && now.declined_tokens > 0)) {
        outcome = std::move(now);
        fetched.load = again.load;
      }
    }
  }
  outcome.matched_tokens = std::max(outcome.matched_tokens, matched);
  return fetched;
}

LoadReport PrefixFetcher::NoteLoad(const Sequence& sequence, LoadTrial* load) {
  if (load == nullptr) return LoadReport();
  // What came was not used.
  if (sequence.restored.from <= Tier::kWorker) load->OnEnd(LoadDecision::kMiss);
  const LoadReport report = load->report();
  switch (report.decision) {
    case LoadDecision::kLoad:
      counters_->Add(EngineCounter::kLoads);
      if (!report.load_estimate.has_value()) break;
      counters_->Add(EngineCounter::kLoadEstimatedUs,
                     absl::ToInt64Microseconds(*report.load_estimate));
      counters_->Add(EngineCounter::kLoadTookUs, absl::ToInt64Microseconds(report.took));
      break;
    case LoadDecision::kCompute:
      counters_->Add(EngineCounter::kLoadsDeclined);
      break;
    case LoadDecision::kAbandoned:
      counters_->Add(EngineCounter::kLoadsAbandoned);
      break;
    case LoadDecision::kMiss:
    case LoadDecision::kNone:
      break;
  }
  return report;
}

}  // namespace hearth
