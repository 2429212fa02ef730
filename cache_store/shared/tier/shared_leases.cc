#include "cache_store/shared/tier/shared_leases.h"

#include <algorithm>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/prefix_key.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

// A sealed number of milliseconds.
constexpr uint64_t kMaxLeaseBytes = 128;

// Gives the leases back, after the store's own claim.
struct Held {
  std::shared_ptr<void> own;
  std::vector<std::string> names;
  std::function<void(std::vector<std::string>)> erase;
  ~Held() {
    own.reset();
    if (!names.empty()) erase(std::move(names));
  }
};

}  // namespace

SharedLeases::Taken SharedLeases::Take(const SharedSpace& space, const std::string& name,
                                       absl::Duration lease, absl::Time deadline) {
  const absl::Time now = parts_.clock->Now();
  const std::string value = space.Seal(name, absl::StrCat(absl::ToUnixMillis(now + lease)));
  const absl::Duration life = absl::Floor(lease, absl::Milliseconds(1));
  if (life < absl::Milliseconds(1)) return Taken::kUnknown;
  const auto set = parts_.engine->Set({SharedValue{name, value, life, true}}, deadline);
  if (!set[0].ok()) return Taken::kUnknown;
  if (*set[0]) return Taken::kHere;
  const auto got = parts_.engine->Get({name}, kMaxLeaseBytes, deadline);
  if (!got[0].ok()) return Taken::kUnknown;
  const absl::StatusOr<std::string> text = space.Open(name, *got[0]);
  int64_t ends = 0;
  if (!text.ok() || !absl::SimpleAtoi(*text, &ends)) {
    parts_.counters->Add(Counter::kSharedRejectedValues);
    return Taken::kUnknown;
  }
  // One that was put back after its end makes nobody wait.
  return absl::FromUnixMillis(ends) > now ? Taken::kElsewhere : Taken::kUnknown;
}

ClaimDecision SharedLeases::Join(const PrefixQuery& query, const KvLayout& layout,
                                 const ClaimRequest& ask, ClaimDecision decision) {
  const absl::Time now = parts_.clock->Now();
  const absl::Time deadline = now + options_.fetch_budget;
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  const uint32_t highest = ask.max_tokens == 0 ? tokens - 1 : std::min(ask.max_tokens, tokens);
  const uint32_t have = std::max(decision.usable_tokens, ask.above_tokens);
  const uint32_t least = have + std::max<uint32_t>(ask.min_tokens, 1);
  std::vector<uint32_t> promised =
      KeptBoundaries(tokens, query.cuts, decision.matched_tokens, have, layout.chunk_tokens);
  if (promised.size() > kMaxBoundaries) {
    promised.erase(promised.begin() + (kMaxBoundaries - 1), promised.end() - 1);
  }
  const auto space = parts_.spaces->Begin(query.tenant, deadline);
  if (!space.ok() || promised.empty()) return decision;
  const PromptChain chain =
      MakeChain(layout, RootKey(query.fingerprint, query.tenant, secret_), query.token_ids,
                query.cuts, promised.back(), promised, query.stopped);
  if (!chain.is_whole) return decision;

  auto held = std::make_shared<Held>();
  held->own = std::move(decision.ticket);
  held->erase = parts_.erase_behind;
  decision.ticket = held;
  for (const uint32_t boundary : promised) {
    const std::string name =
        (*space)->LeaseName(chain.EndingAt(boundary, layout.chunk_tokens)->key);
    const Taken taken = Take(**space, name, decision.until - now, deadline);
    if (taken == Taken::kUnknown && parts_.clock->Now() >= deadline) break;
    if (taken == Taken::kHere) held->names.push_back(name);
    const bool is_worth = boundary >= least && boundary <= highest && now < ask.wait_until;
    if (taken != Taken::kElsewhere || !is_worth) continue;
    if (ask.waited_for == 0) parts_.counters->Add(Counter::kSharedLeaseWaits);
    // The leases go at once. Those of this store that wait for the claim are kept waiting by it.
    parts_.erase_behind(std::exchange(held->names, {}));
    decision.role = ClaimRole::kWait;
    decision.boundary = boundary;
    decision.until = std::min(now + kPause, ask.wait_until);
    break;
  }
  return decision;
}

}  // namespace hearth
