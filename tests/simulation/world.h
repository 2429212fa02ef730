// World: a store, three workers and all their faults, from one seed, in one thread.
//
// Actors act at their own times: clients send requests; housekeeping runs the store's background
// work; an operator pins and drops; faults occur in the network, the disk and the clock, or kill
// the store and workers. Checks run after each event. At the end all faults stop: then every
// request must have been answered, and every promised restore point must exist.
// docs/dev/building.md describes how to run it. Thread safety: none.
#ifndef HEARTH_TESTS_SIMULATION_WORLD_H_
#define HEARTH_TESTS_SIMULATION_WORLD_H_

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/flow.h"
#include "tests/simulation/node.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/sim_worker.h"
#include "tests/simulation/timeline.h"

namespace hearth {

class World {
 public:
  static constexpr int kWorkers = 3;

  // `lines_kept`: see Timeline.
  World(uint64_t seed, size_t lines_kept);
  // Runs the simulation until its end or until an invariant is violated.
  void Run();

  const Timeline& time() const { return time_; }
  // Counts of what happened, to show that a run tested something.
  struct Figures {
    uint64_t requests = 0, restored = 0, promises = 0, deaths = 0, crashes = 0, faults = 0;
  };
  const Figures& figures() const { return figures_; }

 private:
  struct Place {  // a worker with its connection and its running calls
    std::unique_ptr<SimWorker> worker;
    std::unique_ptr<Link> link;
    Peer peer;
    std::vector<std::shared_ptr<Flow>> flows;
    uint64_t requests = 0;
    // start times of the requests that were not answered yet
    std::map<std::string, absl::Time> asked;
  };

  // Defined in world.cc.
  void MakeWorkers();
  void RunUntil(absl::Duration horizon);
  void Pump();
  void PumpWorker(Place* place);
  void TakeResult(Place* place, const WorkerResult& result);
  void Ask(int worker);
  bool goes_on() const { return time_.now() < end_ && !time_.failed(); }
  // Calls `act` again and again until the simulation's end. The time between two calls is random,
  // from `least` to `most`.
  void Every(const std::string& name, absl::Duration least, absl::Duration most,
             std::function<void(Dice*)> act);
  void EndFaults();
  void CheckAll();

  // Defined in world_checks.cc.
  void ReadAll(TieredStore* store, const std::vector<RestorePoint>& listed);
  void ProbePublish();
  absl::Status TryPublish(const PublishSpec& spec, const std::vector<std::string>& slices);
  void BackUp();
  void CheckBackup();

  // Defined in world_damage.cc.
  void Damage(Dice* dice);

  // Defined in world_faults.cc.
  void StartFaults();
  void RunHousekeeping(Dice* dice);
  void BreakNetwork(Dice* dice);
  void BreakDisk(Dice* dice);
  void BreakDevice(Dice* dice);
  void KillStore(Dice* dice);
  void WaitForDrain(absl::Time until, Dice after);
  void EndStore(Ledger::Death death, Dice dice);
  void KillWorker(Dice* dice);
  void EndWorker(Place* place, bool is_silent);
  void JumpClock(Dice* dice);
  void PassNight(Dice* dice);
  void LoseConnections(Place* place, bool is_silent, bool at_node_too);

  // Defined in world_operator.cc.
  void Operate(Dice* dice);
  void Pin(const std::string& tenant, size_t which, bool pinned);
  void Drop(const std::string& tenant, size_t which, bool forces);
  void DropAll(const std::string& tenant, bool forces);
  void Explain(const std::string& tenant, size_t prompt);
  void Quarantine(const std::string& tenant, size_t prompt);
  PrefixQuery QueryOf(const std::string& tenant, size_t prompt) const;

  Timeline time_;
  Oracle& oracle_ = Oracle::Get();
  Node node_{&time_, oracle_.layout()};
  std::array<Place, kWorkers> places_;
  Figures figures_;
  bool damages_ = false;            // whether this world damages the data folder once
  bool has_days_ = false;           // times to live are hours, and whole nights pass
  bool other_disk_faults_ = false;  // whether the disk has faults other than being full
  const TestFolder backup_, restored_;
  // Restore points that were promised when the backup was made, with the time at which the promise
  // ends.
  std::map<Digest, absl::Time> backed_up_;
  absl::Time end_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SIMULATION_WORLD_H_
