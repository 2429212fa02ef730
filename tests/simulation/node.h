// Node: the cache node of a simulation, a real store on a disk that fails on command.
//
// A background job of the store runs when the World says so, one at a time. RocksDB's own threads
// (flushes, compactions) run freely, so they may differ between two runs of a seed. Thread safety:
// none.
#ifndef HEARTH_TESTS_SIMULATION_NODE_H_
#define HEARTH_TESTS_SIMULATION_NODE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache_store/store/calls/store.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/timeline.h"
#include "tests/support/fake_device.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/test_folder.h"

namespace hearth {

// ServedCall: the node's end of a call. The object lives while the node serves the call.
class ServedCall {
 public:
  virtual ~ServedCall() = default;
  // Stops serving the call, and releases the objects of the store that the call holds.
  virtual void StopServing() = 0;
  // Called when the node drains: a call that only waits must end now; other calls may finish.
  virtual void OnNodeDrain() {}
  virtual bool is_served() const = 0;
  // The boundaries that a Lease call waits for or has promised to compute.
  struct Turn {
    ClaimRole role = ClaimRole::kNone;
    absl::Time until;
    std::string waited_for;  // PrefixName of the boundary that the call waits for
    // PrefixNames of the boundaries that the call has promised to compute
    std::vector<std::string> promised;
  };
  virtual Turn turn() const { return Turn(); }
};

class Node {
 public:
  static const std::vector<std::string>& Tenants();

  Node(Timeline* time, const KvLayout& layout);

  // Opens the store. REQUIRES: !is_up().
  void Open();
  // Ends the store as `death` says: a clean close, a killed process or a stopped machine. REQUIRES:
  // is_up().
  void Die(Ledger::Death death);
  bool is_up() const { return store_ != nullptr; }
  // Drains, as on SIGTERM: refuses new calls while running calls continue. Ended by Die. REQUIRES:
  // is_up().
  void Drain();
  bool is_draining() const { return is_draining_; }
  bool is_idle() const;
  Store* store() const { return static_cast<Store*>(store_.get()); }
  Ledger* ledger() { return &ledger_; }
  FaultyDisk* disk() { return &disk_; }
  FakeDevice* device() { return device_.get(); }  // null: the node has no device memory
  // Sets the free space of the disk. A restart of the store does not change it.
  void SetRoom(uint64_t bytes) { disk_.SetRoom(bytes); }
  const std::string& folder() const { return folder_.path(); }
  const StoreOptions& options() const { return options_; }
  void Enter(const std::shared_ptr<ServedCall>& call);

  // Runs background work of the store.
  void RunJob();
  void RunJobs();
  void Upkeep() { store()->UpkeepStep(); }
  void Scrub(int steps);

  // From this call on, stored bytes may be damaged and restore points may be lost.
  void SetDamaged() { is_damaged_ = true; }
  bool is_damaged() const { return is_damaged_; }
  bool is_roomy() const { return is_roomy_; }
  // Returns whether the disk has ever refused an operation or failed a read.
  bool was_struck() const { return disk_.struck() > 0; }

  // Passes the store's new events to the Ledger.
  void TakeEvents();
  // Checks invariants 4, 16 and 30, and the store's internal sums.
  void Check();
  std::vector<RestorePoint> List();

 private:
  class Jobs : public Executor {
   public:
    bool TrySchedule(uint64_t, std::function<void()> job) override {
      absl::MutexLock lock(&mu_);
      if (jobs_.size() >= 64) return false;
      jobs_.push_back(std::move(job));
      return true;
    }
    bool WaitIdle(absl::Time) override {
      while (RunOne()) {
      }
      return true;
    }
    bool RunOne() {
      std::function<void()> job;
      {
        absl::MutexLock lock(&mu_);
        if (jobs_.empty()) return false;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job();
      return true;
    }

   private:
    absl::Mutex mu_;
    std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mu_);
  };

  void ChooseOptions();
  void CheckStart();
  void CheckWaits();
  bool ReportedDamage();
  uint64_t CountedDamage();  // returns how much damage the store has counted since it opened

  Timeline* const time_;
  Dice dice_;
  const TestFolder folder_, secrets_;
  StoreOptions options_;
  uint64_t min_table_bytes_ = DiskTier::kMinTableBytes, device_bytes_ = 0;
  std::shared_ptr<FakeDevice> device_;  // belongs to the open store
  Ledger ledger_;
  FaultyDisk disk_;
  bool is_draining_ = false;
  bool is_roomy_ = false, is_damaged_ = false;
  BootId boot_ = 1;  // boot id of the machine; changes when the machine restarts
  int struck_at_opening_ = 0;
  std::shared_ptr<std::atomic<uint64_t>> warnings_ = std::make_shared<std::atomic<uint64_t>>(0);
  uint64_t warnings_at_opening_ = 0;
  Jobs* jobs_ = nullptr;                         // the store's background jobs; owned by the store
  std::map<std::string, uint64_t> events_seen_;  // number of events read, by tenant
  std::vector<std::weak_ptr<ServedCall>> served_calls_;
  std::unique_ptr<TieredStore> store_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SIMULATION_NODE_H_
