// The faults of a world, and its actors other than clients. All of them depend only on the seed.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/world.h"

namespace hearth {
namespace {

// Time after which an end of a connection notices that the other end is gone.
constexpr absl::Duration kKeepalive = absl::Seconds(20);

}  // namespace

void World::StartFaults() {
  Every("housekeeping", absl::Milliseconds(5), absl::Milliseconds(500),
        [this](Dice* dice) { RunHousekeeping(dice); });
  Every("operator", absl::Milliseconds(500), absl::Seconds(4),
        [this](Dice* dice) { Operate(dice); });
  // Each world has only some kinds of faults: if every world had all kinds, faults would rarely be
  // alone.
  Dice dice = time_.DiceOf("faults");
  damages_ = dice.Chance(25);
  if (dice.Chance(70)) {
    Every("network", absl::Seconds(1), absl::Seconds(15),
          [this](Dice* dice) { BreakNetwork(dice); });
  }
  if (dice.Chance(60)) {
    Every("deaths of the store", absl::Seconds(5), absl::Seconds(40),
          [this](Dice* dice) { KillStore(dice); });
  }
  if (dice.Chance(60)) {
    Every("deaths of workers", absl::Seconds(5), absl::Seconds(30),
          [this](Dice* dice) { KillWorker(dice); });
  }
  if (dice.Chance(50)) {
    Every("disk", absl::Seconds(3), absl::Seconds(20), [this](Dice* dice) { BreakDisk(dice); });
  }
  if (dice.Chance(60)) {
    Every("device", absl::Seconds(1), absl::Seconds(10), [this](Dice* dice) { BreakDevice(dice); });
  }
  if (dice.Chance(30)) {
    Every("clock", absl::Seconds(5), absl::Seconds(30), [this](Dice* dice) { JumpClock(dice); });
  }
  has_days_ = time_.DiceOf("days").Chance(35);
  if (has_days_) {
    Every("nights", absl::Seconds(3), absl::Seconds(25), [this](Dice* dice) { PassNight(dice); });
  }
}

// For invariants 26 and 32: lets a night pass. In the morning most entries with a time to live have
// expired, whether the store was up or down, and an expired entry must not be reported as lost.
void World::PassNight(Dice* dice) {
  const absl::Duration night = dice->Between(absl::Hours(1), absl::Hours(60));
  time_.Note(absl::StrCat("a night of ", absl::FormatDuration(night)));
  time_.Jump(night);
}

void World::RunHousekeeping(Dice* dice) {
  const uint64_t what = dice->Roll(10);
  if (!node_.is_up()) return;
  if (what < 5) {
    node_.RunJob();
  } else if (what < 7) {
    node_.Upkeep();
  } else if (what < 8) {
    node_.Scrub(5);
  }
}

// If `is_silent`, the worker gets no message, and notices the loss by its deadlines.
void World::LoseConnections(Place* place, bool is_silent, bool at_node_too) {
  place->link->Break();
  for (const auto& flow : place->flows) {
    if (at_node_too) flow->StopServing();
    if (!is_silent) time_.After(absl::Milliseconds(1), [flow] { flow->ConnectionLost(); });
  }
}

void World::BreakNetwork(Dice* dice) {
  const size_t number = dice->Roll(kWorkers);
  Place& place = places_[number];
  const uint64_t what = dice->Roll(5), which = dice->Roll(100);
  const absl::Duration how_long = dice->Between(
      absl::Milliseconds(50), dice->Chance(30) ? absl::Seconds(40) : absl::Seconds(3));
  ++figures_.faults;
  if (what == 0) {  // also if no call is running
    time_.Note(absl::StrCat("worker ", number, " loses its connections"));
    return LoseConnections(&place, false, true);
  }
  if (what == 4) {
    if (place.flows.empty()) return;
    return place.flows[which % place.flows.size()]->Cancel();
  }
  if (what == 1) {
    time_.Note(absl::StrCat("worker ", number, " is slow to reach"));
    place.link->SetSlowness(dice->Between(absl::Milliseconds(20), absl::Milliseconds(400)));
    time_.After(how_long, [&place] { place.link->SetSlowness(absl::Milliseconds(2)); });
    return;
  }
  if (place.link->is_cut()) return;
  time_.Note(absl::StrCat("worker ", number, " is cut off"));
  place.link->Cut();
  time_.After(std::min(how_long, kKeepalive), [this, &place, how_long] {
    // Each end has missed the keepalives of the other end, so both give up the connection.
    if (how_long >= kKeepalive) LoseConnections(&place, false, true);
  });
  time_.After(how_long, [this, &place, number] {
    time_.Note(absl::StrCat("worker ", number, " is there again"));
    place.link->Heal();
  });
}

void World::BreakDisk(Dice* dice) {
  constexpr DiskFault kFaults[] = {DiskFault::kFailedWrite, DiskFault::kShortWrite,
                                   DiskFault::kFailedSync, DiskFault::kFailedRead};
  const uint64_t what = dice->Roll(6);
  const int nth = 1 + static_cast<int>(dice->Roll(30));
  const absl::Duration how_long = dice->Between(absl::Milliseconds(100), absl::Seconds(15));
  const uint64_t room = dice->Roll(300000);
  ++figures_.faults;
  if (what < 4) {
    time_.Note(absl::StrCat("the disk is to fail: ", what, ", number ", nth));
    other_disk_faults_ = true;
    return node_.disk()->Arm(kFaults[what], nth);
  }
  const uint64_t left = what == 4 ? 0 : room;
  time_.Note(absl::StrCat("the disk has room for ", left));
  node_.SetRoom(left);
  time_.After(how_long, [this] {
    time_.Note("the disk has room again");
    node_.SetRoom(FaultyDisk::kAmple);
  });
}

void World::BreakDevice(Dice* dice) {
  const uint64_t what = dice->Roll(20), which = dice->Roll(1000);
  const std::string& tenant = Node::Tenants()[dice->Roll(Node::Tenants().size())];
  if (!node_.is_up() || node_.device() == nullptr) return;
  ++figures_.faults;
  if (what < 6) return node_.device()->FailOnce(absl::InternalError("the copy failed"));
  if (what < 13) return node_.device()->FlipOnce();
  if (what < 19) {  // drop a restore point while a copy to the device is running
    return node_.device()->Meanwhile([this, tenant, which] {
      if (node_.is_up()) Drop(tenant, which, true);
    });
  }
  time_.Note("the device is lost");
  node_.device()->Lose();
}

void World::KillStore(Dice* dice) {
  const auto death = static_cast<Ledger::Death>(dice->Roll(3));
  const bool drains = death == Ledger::Death::kClose && dice->Chance(50);
  const absl::Duration patience = dice->Between(absl::Milliseconds(100), absl::Seconds(5));
  Dice after(dice->Roll(~uint64_t{0}));
  if (!node_.is_up() || node_.is_draining()) return;
  ++figures_.deaths;
  if (!drains) return EndStore(death, after);
  node_.Drain();
  WaitForDrain(time_.now() + patience, after);
}

// Ends the store once no call is running, at the latest at `until`.
void World::WaitForDrain(absl::Time until, Dice after) {
  time_.After(absl::Milliseconds(20), [this, until, after] {
    if (!node_.is_idle() && time_.now() < until) return WaitForDrain(until, after);
    EndStore(Ledger::Death::kClose, after);
  });
}

void World::EndStore(Ledger::Death death, Dice dice) {
  const absl::Duration down = dice.Between(absl::Milliseconds(10), absl::Seconds(8));
  // the result is unused; the draw keeps the random sequence, so that old seeds give the same
  // worlds
  dice.Chance(50);
  node_.Die(death);
  for (Place& place : places_) {
    LoseConnections(&place, death == Ledger::Death::kMachine, true);
  }
  if (damages_ && death != Ledger::Death::kMachine && !node_.is_damaged()) Damage(&dice);
  time_.After(down, [this] {
    if (!node_.is_up()) node_.Open();
  });
}

void World::KillWorker(Dice* dice) {
  const size_t number = dice->Roll(kWorkers);
  const uint64_t how = dice->Roll(10);
  const absl::Duration patience = dice->Between(absl::Milliseconds(100), absl::Seconds(20));
  Place& place = places_[number];
  ++figures_.crashes;
  if (how < 6 || place.worker->is_draining()) return EndWorker(&place, how < 3);
  time_.Note(absl::StrCat("worker ", number, " drains"));
  place.worker->Drain();
  time_.After(patience, [this, &place] {
    if (place.worker->is_draining()) EndWorker(&place, false);
  });
}

// Ends a worker without a message for its calls. The node notices at once; if `is_silent`, only by
// keepalive.
void World::EndWorker(Place* place, bool is_silent) {
  time_.Note(absl::StrCat("worker ", place->peer.number, is_silent ? " vanishes" : " is killed"));
  std::vector<std::shared_ptr<Flow>> flows;
  std::swap(flows, place->flows);
  place->link->Break();
  for (const auto& flow : flows) flow->WorkerDied();
  time_.After(is_silent ? kKeepalive : absl::Milliseconds(1), [flows] {
    for (const auto& flow : flows) flow->StopServing();
  });
  place->asked.clear();
  place->worker->Crash();
}

void World::JumpClock(Dice* dice) {
  const absl::Duration by = dice->Chance(60) ? dice->Between(absl::Seconds(1), absl::Seconds(90))
                                             : -dice->Between(absl::Seconds(0), absl::Seconds(5));
  time_.Note(absl::StrCat("the store's clock is set by ", absl::FormatDuration(by)));
  time_.Jump(by);
}

}  // namespace hearth
