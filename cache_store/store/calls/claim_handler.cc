#include "cache_store/store/calls/claim_handler.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "proto/restore_rule.h"

namespace hearth {
namespace {

using Boundary = ComputeClaims::Boundary;

std::vector<Boundary> Named(const std::vector<uint32_t>& boundaries, const PromptChain& chain,
                            uint32_t chunk_tokens, uint32_t least, uint32_t most) {
  std::vector<Boundary> named;
  for (const uint32_t boundary : boundaries) {
    if (boundary < least || boundary > most) continue;
    const KeyedSegment* segment = chain.EndingAt(boundary, chunk_tokens);
    if (segment != nullptr) named.push_back({boundary, segment->key});
  }
  return named;
}

void Run(const ComputeClaims::Wakes& wakes) {
  for (const ComputeClaims::Wake& wake : wakes) wake();
}

}  // namespace

absl::StatusOr<ClaimDecision> ClaimHandler::Claim(const PrefixQuery& query, ClaimRequest ask) {
  if (absl::Status status = CheckPrefix(query.token_ids, query.cuts); !status.ok()) return status;
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  const absl::StatusOr<std::vector<Fetcher::Namespace>> chained =
      finder_->NamespacesOf(query, tokens);
  if (!chained.ok()) return chained.status();
  const std::vector<Fetcher::Namespace>& spaces = *chained;
  // A caller publishes only under its own tenant, so without the tenant's namespace there is no
  // claim.
  if (spaces.empty() || spaces[0].tenant != query.tenant) return ClaimDecision();
  ClaimDecision turn;
  ComputeClaims::Wakes wakes;
  {
    StoreLock lock(core_);
    core_->Expire();
    turn = DecideRole(query, spaces, std::move(ask), &wakes);
  }
  Run(wakes);
  return turn;
}

ClaimDecision ClaimHandler::DecideRole(const PrefixQuery& query,
                                       const std::vector<Fetcher::Namespace>& spaces,
                                       ClaimRequest ask, ComputeClaims::Wakes* wakes) {
  core_->mu.AssertHeld();
  assert(!spaces.empty() && spaces[0].tenant == query.tenant);
  const KvLayout& layout = spaces[0].model->layout;
  const PromptChain& chain = *spaces[0].chain;
  const uint32_t chunk_tokens = layout.chunk_tokens;
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  const uint32_t highest = ask.max_tokens == 0 ? tokens - 1 : std::min(ask.max_tokens, tokens);
  const absl::Time now = core_->clock->Now();
  core_->claims.Expire(now, wakes);

  ClaimDecision turn;
  uint32_t stored = 0;
  for (const Fetcher::Namespace& space : spaces) {
    const Fetcher::Found found = finder_->Search(query, space, highest);
    turn.usable_tokens = std::max(turn.usable_tokens, found.boundary);
    stored = std::max(stored, found.matched_tokens);
  }
  const uint32_t have = std::max(turn.usable_tokens, ask.above_tokens);
  const uint32_t least = have + std::clamp<uint32_t>(ask.min_tokens, 1, UINT32_MAX - have);
  const auto promise = core_->claims.Find(Named(
      RestoreCandidates(highest, query.cuts, chunk_tokens), chain, chunk_tokens, least, highest));
  if (promise.has_value() && now < ask.wait_until) {
    if (const ComputeClaims::Id id = core_->claims.Wait(promise->key, std::move(ask.wake));
        id != 0) {
      if (ask.waited_for == 0) core_->Count(Counter::kLeaseWaits);
      turn.role = ClaimRole::kWait;
      turn.boundary = promise->tokens;
      turn.until = std::min(promise->until, ask.wait_until);
      assert(turn.boundary >= least && turn.boundary <= highest);
      turn.ticket = Ticket([this, id] {
        StoreLock lock(core_);
        core_->claims.StopWaiting(id);
      });
      return turn;
    }
  }
  const uint32_t under_way =
      static_cast<uint32_t>(core_->claims.SharedChunks(chain.chunks)) * chunk_tokens;
  turn.matched_tokens = std::max(stored, under_way);
  if (ask.compute_time > absl::ZeroDuration()) Promise(query, layout, chain, ask, now, &turn);
  if (ask.waited_for == 0) return turn;
  if (turn.usable_tokens >= ask.waited_for) {
    core_->Count(Counter::kLeaseWaitsHit);
  } else if (now >= ask.wait_until) {
    core_->Count(Counter::kLeaseWaitsTimedOut);
  } else if (turn.role == ClaimRole::kCompute) {
    core_->Count(Counter::kLeaseTakeovers);
  }
  return turn;
}

void ClaimHandler::Promise(const PrefixQuery& query, const KvLayout& layout,
                           const PromptChain& chain, const ClaimRequest& ask, absl::Time now,
                           ClaimDecision* turn) {
  core_->mu.AssertHeld();
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  const uint32_t have = std::max(turn->usable_tokens, ask.above_tokens);
  const std::vector<uint32_t> kept =
      KeptBoundaries(tokens, query.cuts, turn->matched_tokens, have, layout.chunk_tokens);
  const std::vector<Boundary> promised = Named(kept, chain, layout.chunk_tokens, have + 1, tokens);
  if (promised.empty() || promised.back().tokens - have < ask.min_tokens) return;
  absl::Span<const KeyedSegment> path = chain.chunks;
  assert(promised.back().tokens / layout.chunk_tokens <= path.size());
  path = path.subspan(0, promised.back().tokens / layout.chunk_tokens);
  const ComputeClaims::Id id = core_->claims.Grant(promised, path, now + ask.compute_time);
  if (id == 0) return;
  core_->Count(Counter::kLeasesGranted);
  turn->role = ClaimRole::kCompute;
  turn->boundary = promised.back().tokens;
  turn->until = now + ask.compute_time;
  assert(turn->boundary > have && turn->boundary <= tokens);
  turn->ticket = Ticket([this, id] {
    ComputeClaims::Wakes wakes;
    {
      StoreLock lock(core_);
      core_->claims.End(id, &wakes);
    }
    Run(wakes);
  });
}

std::shared_ptr<void> ClaimHandler::Ticket(std::function<void()> give_back) {
  return {nullptr, [give_back = std::move(give_back)](std::nullptr_t) { give_back(); }};
}

}  // namespace hearth
