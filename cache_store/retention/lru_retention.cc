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
  for (size_t room = 0; room < kRooms; ++room) {
    if (unit->offered[room]) Offer(key, *unit, room, false);
  }
  unit->tick = tick;
  for (size_t room = 0; room < kRooms; ++room) {
    if (unit->offered[room]) Offer(key, *unit, room, true);
  }
}

void LruRetention::Offer(Key key, const Unit& unit, size_t room, bool offered) {
  const VictimOrder::Place place{unit.tick, ~unit.tokens, key};
  if (offered) {
    offered_[room].Add(unit.owner, {}, place, NoWorth);
  } else {
    offered_[room].Remove(unit.owner, {}, place);
  }
}

void LruRetention::Add(Key key, const Unit& unit) {
  const bool inserted = units_.emplace(key, unit).second;
  assert(inserted);
  (void)inserted;
  SetOffered(key, Room::kStore, true);
}

void LruRetention::Insert(Key key, const Facts& facts, const Prompt&) {
  Add(key, Unit{++tick_, facts.tokens, facts.owner, {}});
}

void LruRetention::Adopt(Key key, const Facts& facts, bool, absl::Time, absl::Time) {
  Add(key, Unit{--oldest_tick_, facts.tokens, facts.owner, {}});
}

void LruRetention::SetOffered(Key key, Room room, bool offered) {
  Unit& unit = units_.at(key);
  const size_t place = static_cast<size_t>(room);
  if (unit.offered[place] == offered) return;
  unit.offered[place] = offered;
  Offer(key, unit, place, offered);
}

void LruRetention::Erase(Key key, bool) {
  SetOffered(key, Room::kStore, false);
  SetOffered(key, Room::kHost, false);
  units_.erase(key);
}

void LruRetention::Visit(Room room, absl::FunctionRef<Answer(Key)> take) {
  offered_[static_cast<size_t>(room)].Visit(take);
}

void LruRetention::VisitOwned(Room room, Owner owner, absl::FunctionRef<Answer(Key)> take) {
  offered_[static_cast<size_t>(room)].VisitOwned(owner, take);
}

}  // namespace hearth
