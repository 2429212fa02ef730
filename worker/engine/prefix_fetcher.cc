#include "worker/engine/prefix_fetcher.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "proto/restore_rule.h"
#include "worker/engine/runner/kv_snapshot.h"

namespace hearth {

namespace {

// Maximum fetch threads. A fetch occupies a thread until it ends, even while it waits for another
// request to compute the prefix. Every running sequence may have one fetch.
constexpr size_t kMaxFetchThreads = 64;
// Extra time that the engine waits for a fetch, so that a cache that respects its timeout returns
// before the engine gives up. A result that arrives in time also measures the link's speed.
constexpr absl::Duration kReturnTime = absl::Milliseconds(50);

}  // namespace

PrefixFetcher::PrefixFetcher(const CacheTerms& terms, uint32_t max_running, const KvLayout& layout,
                             PrefixPool* pool, EngineCounters* counters, std::function<void()> wake)
    : terms_(terms),
      layout_(layout),
      pool_(pool),
      counters_(counters),
      wake_(std::move(wake)),
      loads_(terms.load, terms.load_clock),
      // Every running sequence may have a fetch and a return.
      fetches_(std::min<size_t>(max_running, kMaxFetchThreads), 2 * size_t{max_running}) {}

// Returns the highest boundary at which the sequence could be restored.
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

LoadReport PrefixFetcher::Estimate(uint32_t boundary) const {
  LoadReport load;
  load.boundary = boundary;
  load.bytes = NeededBytes(layout_, boundary);
  loads_.Compare({0, boundary, 0}, &load);
  return load;
}

std::optional<FetchOutcome> PrefixFetcher::LookUp(const std::shared_ptr<Sequence>& sequence,
                                                  PrefixCache* cache, const LoadWork& work) {
  FetchOutcome unasked;
  LoadReport& best = unasked.load;
  best.boundary = BestBoundary(*sequence);
  best.bytes = NeededBytes(layout_, best.boundary);
  loads_.Decide(work, &best);
  if (best.decision == LoadDecision::kCompute) {
    best.boundary = 0;
    counters_->Add(EngineCounter::kLoadsUnasked);
    return unasked;
  }
  counters_->Add(EngineCounter::kFetches);
  // Longest wait: two attempts, each with a plan and a transfer.
  absl::Duration longest = 2 * terms_.fetch_budget + kReturnTime;
  if (best.limits.has_value()) {
    longest += 2 * std::max(best.limits->transfer, *best.compute_estimate);
  }
  assert(best.boundary > sequence->pooled.boundary);  // MayHaveMore() found this
  const absl::Time deadline = LoadModel::SteadyNow() + terms_.fetch_budget;
  const auto fetch = [this, sequence, cache, work, deadline](TaskQueue::Fate fate) {
    FetchOutcome fetched;
    try {
      if (fate == TaskQueue::Fate::kRun) {
        fetched = FetchWithLease(sequence.get(), cache, work, deadline);
      }
    } catch (const std::exception& error) {
      fetched = FetchOutcome();
      fetched.note = error.what();
    }
    const bool is_miss = fetched.usable_tokens == 0 && fetched.declined_tokens == 0;
    if (is_miss && sequence->fetch.IsAwaited()) counters_->Add(EngineCounter::kFetchMisses);
    if (sequence->fetch.Deliver(std::move(fetched))) wake_();
  };
  sequence->fetch.WaitUntil(sequence->times.admitted_at + longest);
  if (fetches_.Submit(fetch)) return std::nullopt;
  return FetchOutcome();  // all fetch threads are busy
}

FetchOutcome PrefixFetcher::Fetch(PrefixCache* cache, const PrefixRequest& prefix,
                                  uint32_t above_tokens, uint32_t max_tokens,
                                  absl::Duration timeout) {
  FetchOutcome outcome = cache->Fetch(prefix, above_tokens, max_tokens, timeout);
  loads_.OnFetch(outcome.load);
  return outcome;
}

// Runs on a fetch thread. Fetches the prefix. If another request is computing a longer prefix,
// waits for that request and fetches again. The cache lends device memory for a short time only, so
// lent objects are returned before the wait, and are fetched again if nothing better came.
FetchOutcome PrefixFetcher::FetchWithLease(Sequence* sequence, PrefixCache* cache,
                                           const LoadWork& work, absl::Time deadline) {
  PrefixRequest prefix = sequence->prefix;
  prefix.load = &loads_;
  prefix.work = work;
  const uint32_t above_tokens = work.have_tokens, max_tokens = sequence->max_boundary();
  const auto left = [&] { return deadline - LoadModel::SteadyNow(); };
  // The budget was used up by waiting for a fetch thread. Do not call the cache.
  if (left() <= absl::ZeroDuration()) return FetchOutcome();
  FetchOutcome outcome = Fetch(cache, prefix, above_tokens, max_tokens, left());
  // The fetch was late: the link is slow or the store does not answer. A further call would delay
  // the request even more.
  if (outcome.load.is_late) return outcome;
  const uint32_t have = std::max({above_tokens, outcome.usable_tokens, outcome.declined_tokens});
  LeaseTerms terms = terms_.compute;
  if (!sequence->writes()) terms.lease = absl::ZeroDuration();
  const bool takes_part = std::max(terms.lease, terms.wait) > absl::ZeroDuration();
  if (!takes_part || max_tokens < uint64_t{have} + terms.min_tokens) return outcome;
  // If loading used up the budget, allow another budget for the answer to Lease.
  const absl::Duration answer = left() > absl::ZeroDuration() ? left() : terms_.fetch_budget;
  // Longest wait: the answer to Lease, the wait for the other request, and two fetches. The cache
  // enforces the limit of each.
  const absl::Duration longest = answer + terms.wait + 2 * terms_.fetch_budget;
  if (!sequence->fetch.WaitUntil(absl::Now() + longest)) return outcome;
  uint32_t returned_tokens = 0;
  terms.on_wait = [&] {
    if (MayBeKept(outcome.objects)) return;
    outcome.objects.clear();
    returned_tokens = std::exchange(outcome.usable_tokens, 0);
  };
  LeaseOutcome turn = cache->Lease(prefix, have, max_tokens, terms, answer);
  outcome.lease = std::move(turn.lease);
  outcome.matched_tokens = std::max(outcome.matched_tokens, turn.matched_tokens);
  const auto fetch_again = [&](uint32_t above, uint32_t most) {
    // Tokens of a declined load are not in this worker, so they count as tokens to compute.
    prefix.work.have_tokens = std::max(above_tokens, outcome.usable_tokens);
    FetchOutcome again = Fetch(cache, prefix, above, most, terms_.fetch_budget);
    again.matched_tokens = std::max(again.matched_tokens, outcome.matched_tokens);
    again.is_counted |= outcome.is_counted;
    again.counted_held = std::max(again.counted_held, outcome.counted_held);
    // If this fetch brings nothing, keep the first fetch's objects.
    const bool is_better =
        again.usable_tokens > 0 || (outcome.usable_tokens == 0 && again.declined_tokens > 0);
    if (!is_better) return;
    again.lease = std::move(outcome.lease);
    outcome = std::move(again);
  };
  if (turn.usable_tokens > have && sequence->fetch.IsAwaited()) {
    // If the other request ran on this worker, its prefix is in the pool. The engine will find it
    // there.
    if (pool_->Lookup(prefix, max_tokens).boundary >= turn.usable_tokens) return outcome;
    fetch_again(have, max_tokens);
  }
  if (returned_tokens > 0 && outcome.usable_tokens == 0 && sequence->fetch.IsAwaited()) {
    fetch_again(above_tokens, returned_tokens);
  }
  return outcome;
}

void PrefixFetcher::Return(KvObjects objects) {
  if (MayBeKept(objects)) return;
  fetches_.Submit([objects = std::move(objects)](TaskQueue::Fate) {});
}

LoadReport PrefixFetcher::NoteLoad(const Sequence& sequence, LoadReport load) {
  const bool is_used = sequence.restored.from > Tier::kWorker;
  if (load.decision == LoadDecision::kLoad && !is_used) load.decision = LoadDecision::kMiss;
  switch (load.decision) {
    case LoadDecision::kLoad:
      counters_->Add(EngineCounter::kLoads);
      if (!load.load_estimate.has_value()) break;
      counters_->Add(EngineCounter::kLoadEstimatedUs,
                     absl::ToInt64Microseconds(*load.load_estimate));
      counters_->Add(EngineCounter::kLoadActualUs, absl::ToInt64Microseconds(load.took));
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
  return load;
}

}  // namespace hearth
