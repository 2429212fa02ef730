// What goes wrong in a world, and who else has a hand in it. All from dice of the seed's.
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/world.h"

namespace hearth {

void World::StartFaults() {
  Every("housekeeping", absl::Milliseconds(5), absl::Milliseconds(500),
        [this](Dice* dice) { KeepHouse(dice); });
  Every("deaths of the store", absl::Seconds(5), absl::Seconds(40),
        [this](Dice* dice) { KillStore(dice); });
}

void World::KeepHouse(Dice* dice) {
  const uint64_t what = dice->Roll(10);
  if (!node_.is_up()) return;
  if (what < 5) {
    node_.RunJob();
  } else if (what < 7) {
    node_.Upkeep();
  } else if (what < 8) {
    node_.Scrub(5);
  } else {
    node_.Load(1);
  }
}

// Silent: nothing is said to the worker, which finds out by its deadlines.
void World::LoseConnections(Place* place, bool is_silent, bool at_node_too) {
  place->link->Break();
  for (const auto& flow : place->flows) {
    if (at_node_too) flow->NodeGone();
    if (!is_silent) time_.After(absl::Milliseconds(1), [flow] { flow->ConnectionLost(); });
  }
}

void World::KillStore(Dice* dice) {
  const auto death = static_cast<Ledger::Death>(dice->Roll(3));
  const absl::Duration down = dice->Between(absl::Milliseconds(10), absl::Seconds(8));
  if (!node_.is_up()) return;
  ++figures_.deaths;
  node_.Die(death);
  for (Place& place : places_) {
    LoseConnections(&place, death == Ledger::Death::kMachine, true);
  }
  time_.After(down, [this] { node_.Open(); });
}

}  // namespace hearth
