#include "cache_store/shared/tier/shared_claims.h"

#include <algorithm>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

// A sealed number of milliseconds.
constexpr uint64_t kMaxClaimBytes = 128;

// Own claims remembered; beyond, those that ended are forgotten.
constexpr size_t kMaxOwn = 4096;

}  // namespace

// Gives the claims back, after the store's own claim.
struct SharedClaims::Held {
  SharedClaims* claims = nullptr;
  std::shared_ptr<void> own;
  std::vector<std::string> names;
  ~Held() {
    own.reset();
    claims->GiveBack(std::move(names));
  }
};

SharedClaims::Taken SharedClaims::Take(const SharedSpace& space, const std::string& name,
                                       absl::Duration claim, absl::Time deadline) {
  const absl::Time now = core_->steady->Now();
  const absl::Duration life = absl::Floor(claim, absl::Milliseconds(1));
  if (life < absl::Milliseconds(1)) return Taken::kUnknown;
  bool is_own = false;
  {
    absl::MutexLock lock(&mu_);
    const auto it = own_.find(name);
    is_own = it != own_.end() && it->second.ends > now;
  }
  const int64_t ends_ms = absl::ToUnixMillis(core_->clock->Now() + claim);
  const std::string value = space.Seal(name, absl::StrCat(ends_ms));
  const auto set = core_->engine->Set({SharedValue{name, value, life, !is_own}}, deadline);
  if (!set[0].ok()) return Taken::kUnknown;
  if (!*set[0]) return Look(space, name, deadline);
  absl::MutexLock lock(&mu_);
  if (own_.size() >= kMaxOwn) {
    absl::erase_if(own_, [&](const auto& entry) { return entry.second.ends <= now; });
  }
  Own& own = own_[name];
  ++own.holders;
  own.ends = now + life;
  return Taken::kHere;
}

SharedClaims::Taken SharedClaims::Look(const SharedSpace& space, const std::string& name,
                                       absl::Time deadline) {
  const auto got = core_->engine->Get({name}, kMaxClaimBytes, deadline);
  if (!got[0].ok()) return Taken::kUnknown;
  const absl::StatusOr<std::string> text = space.Open(name, *got[0]);
  int64_t ends = 0;
  if (!text.ok() || !absl::SimpleAtoi(*text, &ends)) {
    core_->Count(Counter::kSharedRejectedValues);
    return Taken::kUnknown;
  }
  // One that was put back after its end makes nobody wait.
  return absl::FromUnixMillis(ends) > core_->clock->Now() ? Taken::kElsewhere : Taken::kUnknown;
}

void SharedClaims::GiveBack(std::vector<std::string> names) {
  if (names.empty()) return;
  auto shared = std::make_shared<const std::vector<std::string>>(std::move(names));
  if (writer_->RunBehind([this, shared] { Erase(*shared); })) return;
  // They end by themselves, and are this store's until then.
  absl::MutexLock lock(&mu_);
  for (const std::string& name : *shared) {
    if (const auto it = own_.find(name); it != own_.end()) --it->second.holders;
  }
}

void SharedClaims::Erase(const std::vector<std::string>& names) {
  const absl::Time now = core_->steady->Now();
  std::vector<std::string> last;
  {
    absl::MutexLock lock(&mu_);
    for (const std::string& name : names) {
      const auto it = own_.find(name);
      if (it != own_.end() && it->second.holders == 1 && it->second.ends > now) {
        last.push_back(name);
      }
    }
  }
  // Known as this store's until they are gone.
  if (!last.empty()) core_->engine->Erase(last, core_->WriteDeadline());
  absl::MutexLock lock(&mu_);
  for (const std::string& name : names) {
    const auto it = own_.find(name);
    if (it != own_.end() && --it->second.holders <= 0) own_.erase(it);
  }
}

ClaimDecision SharedClaims::Join(const PrefixQuery& query, const KvLayout& layout,
                                 const ClaimRequest& ask, ClaimDecision decision) {
  const absl::Time now = core_->clock->Now();
  const absl::Time deadline = now + core_->options.fetch_budget;
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  const uint32_t highest = ask.max_tokens == 0 ? tokens - 1 : std::min(ask.max_tokens, tokens);
  const uint32_t have = std::max(decision.usable_tokens, ask.above_tokens);
  const uint32_t least = have + std::clamp<uint32_t>(ask.min_tokens, 1, UINT32_MAX - have);
  std::vector<uint32_t> promised =
      KeptBoundaries(tokens, query.cuts, decision.matched_tokens, have, layout.chunk_tokens);
  if (promised.size() > kMaxBoundaries) {
    promised.erase(promised.begin() + (kMaxBoundaries - 1), promised.end() - 1);
  }
  const auto space = core_->spaces.Begin(query.tenant, deadline);
  if (!space.ok() || promised.empty()) return decision;
  const ChainPtr chain =
      ChainOf(query.chains, layout, (*space)->RootOf(query.fingerprint), query.token_ids,
              query.cuts, promised.back(), promised, query.stopped);
  if (!chain->is_whole) return decision;

  auto held = std::make_shared<Held>();
  held->own = std::move(decision.ticket);
  held->claims = this;
  decision.ticket = held;
  for (const uint32_t boundary : promised) {
    const std::string name =
        (*space)->ClaimName(chain->EndingAt(boundary, layout.chunk_tokens)->key);
    const Taken taken = Take(**space, name, decision.until - now, deadline);
    if (taken == Taken::kUnknown && core_->clock->Now() >= deadline) break;
    if (taken == Taken::kHere) held->names.push_back(name);
    const bool is_worth = boundary >= least && boundary <= highest && now < ask.wait_until;
    if (taken != Taken::kElsewhere || !is_worth) continue;
    if (ask.waited_for == 0) core_->Count(Counter::kSharedLeaseWaits);
    // The claims are given back. Those of this store that wait for the claim are kept waiting by
    // it.
    GiveBack(std::exchange(held->names, {}));
    decision.role = ClaimRole::kWait;
    decision.boundary = boundary;
    decision.until = std::min(now + kPause, ask.wait_until);
    break;
  }
  return decision;
}

}  // namespace hearth
