#include "cache_store/lru_retention.h"

#include <cassert>

namespace hearth {

void LruRetention::Touch(absl::Span<const Key> path, uint32_t, absl::Time) {
  ++tick_;
  for (const Key key : path) {
    const auto found = units_.find(key);
    if (found != units_.end()) SetTick(key, &found->second, tick_);
  }
}

void LruRetention::SetTick(Key key, Unit* unit, uint64_t tick) {
  for (size_t room = 0; room < kRooms; ++room) {
    if (!unit->offered[room]) continue;
    order_[room].erase({unit->tick, ~unit->tokens, key});
    order_[room].insert({tick, ~unit->tokens, key});
  }
  unit->tick = tick;
}

void LruRetention::Add(Key key, const Unit& unit) {
  const bool inserted = units_.emplace(key, unit).second;
  assert(inserted);
  (void)inserted;
  SetOffered(key, Room::kStore, true);
}

void LruRetention::Insert(Key key, const Facts& facts, const Prompt&) {
  Add(key, Unit{++tick_, facts.tokens, {}});
}

void LruRetention::Adopt(Key key, const Facts& facts, bool, absl::Time, absl::Time) {
  Add(key, Unit{--oldest_tick_, facts.tokens, {}});
}

void LruRetention::SetOffered(Key key, Room room, bool offered) {
  Unit& unit = units_.at(key);
  const size_t place = static_cast<size_t>(room);
  if (unit.offered[place] == offered) return;
  unit.offered[place] = offered;
  if (offered) {
    order_[place].insert({unit.tick, ~unit.tokens, key});
  } else {
    order_[place].erase({unit.tick, ~unit.tokens, key});
  }
}

void LruRetention::Erase(Key key, bool) {
  SetOffered(key, Room::kStore, false);
  SetOffered(key, Room::kHost, false);
  units_.erase(key);
}

void LruRetention::Visit(Room room, absl::FunctionRef<bool(Key)> take) {
  for (const auto& [tick, longest_first, key] : order_[static_cast<size_t>(room)]) {
    if (take(key)) return;
  }
}

}  // namespace hearth
