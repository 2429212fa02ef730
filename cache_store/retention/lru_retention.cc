#include "cache_store/retention/lru_retention.h"

#include <cassert>

namespace hearth {
namespace {

// All units are of one class: only their last use tells them apart.
int NoWorth(const VictimOrder::Class&) { return 0; }

}  // namespace

void LruRetention::Touch(absl::Span<const Key> path, uint32_t, absl::Time) {
  ++tick_;
  for (const Key key : path) {
    const auto found = units_.find(key);
    if (found != units_.end()) SetTick(key, &found->second, tick_);
  }
}

void LruRetention::SetTick(Key key, Unit* unit, uint64_t tick) {
  for (size_t scope = 0; scope < kScopes; ++scope) {
    if (unit->offered[scope]) Offer(key, *unit, scope, false);
  }
  unit->tick = tick;
  for (size_t scope = 0; scope < kScopes; ++scope) {
    if (unit->offered[scope]) Offer(key, *unit, scope, true);
  }
}

void LruRetention::Offer(Key key, const Unit& unit, size_t scope, bool offered) {
  const VictimOrder::Place place{unit.tick, ~unit.tokens, key};
  if (offered) {
    offered_[scope].Add(unit.owner, {}, place, NoWorth);
  } else {
    offered_[scope].Remove(unit.owner, {}, place);
  }
}

void LruRetention::Add(Key key, const Unit& unit) {
  const bool inserted = units_.emplace(key, unit).second;
  assert(inserted);
  (void)inserted;
  SetEvictable(key, Scope::kStore, true);
}

void LruRetention::Insert(Key key, const Facts& facts, const Prompt&) {
  Add(key, Unit{++tick_, facts.tokens, facts.owner, {}});
}

void LruRetention::Adopt(Key key, const Facts& facts, bool, absl::Time, absl::Time) {
  Add(key, Unit{--oldest_tick_, facts.tokens, facts.owner, {}});
}

void LruRetention::SetEvictable(Key key, Scope scope, bool offered) {
  Unit& unit = units_.at(key);
  const size_t place = static_cast<size_t>(scope);
  if (unit.offered[place] == offered) return;
  unit.offered[place] = offered;
  Offer(key, unit, place, offered);
}

void LruRetention::Erase(Key key, bool) {
  SetEvictable(key, Scope::kStore, false);
  SetEvictable(key, Scope::kHost, false);
  units_.erase(key);
}

void LruRetention::Visit(Scope scope, absl::FunctionRef<Answer(Key)> take) {
  offered_[static_cast<size_t>(scope)].Visit(take);
}

void LruRetention::VisitOwned(Scope scope, Owner owner, absl::FunctionRef<Answer(Key)> take) {
  offered_[static_cast<size_t>(scope)].VisitOwned(owner, take);
}

}  // namespace hearth
