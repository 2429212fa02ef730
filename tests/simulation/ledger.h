// Ledger: derives from calls and their answers which restore points a store must have, may have and
// must not have.
//
// Identifies a restore point by tenant, tokens and cuts, which every caller knows; the store
// reports its id. Times are those of the store's clock. Thread safety: none.
#ifndef HEARTH_TESTS_SIMULATION_LEDGER_H_
#define HEARTH_TESTS_SIMULATION_LEDGER_H_

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cache_store/store/tiered_store.h"
#include "tests/simulation/timeline.h"

namespace hearth {

// Returns a unique name for a prefix of a prompt. The name contains everything that determines the
// stored bytes.
std::string PrefixName(const std::string& tenant, const std::vector<uint32_t>& tokens,
                       const std::vector<uint32_t>& cuts, uint32_t end, const KvLayout& layout);
std::string ObjectName(const std::string& tenant, const std::vector<uint32_t>& tokens,
                       const std::vector<uint32_t>& cuts, const ObjectId& id,
                       const KvLayout& layout);

class Ledger {
 public:
  Ledger(Timeline* time, const KvLayout& layout, const TenantQuotas* quotas)
      : time_(time), layout_(layout), quotas_(quotas) {}

  // Call this before a publish is committed. `put`: indices of the objects whose bytes were sent.
  void Committing(const PublishSpec& spec, const std::vector<uint32_t>& put);
  void Committed(const PublishSpec& spec, const PublishResult& result);
  // Call this if a commit failed: some of the restore points may be stored.
  void CommitFailed(const PublishSpec& spec);
  // Records the id that the store gave to a restore point.
  void Learn(const std::string& name, const Digest& id);
  void OnEvent(const StoreEvent& event, bool may_damage, bool may_evict);
  // Starts to track pins by events. `listed` has the current pins. CheckPins compares the tracked
  // pins with a later list.
  void BeginPins(const std::vector<RestorePoint>& listed);
  void CheckPins(const std::vector<RestorePoint>& listed);
  // Records that a pin was acknowledged.
  void Pinned(const Digest& id);
  // Records a pin of a restore point that was never published. A lookup created it from objects of
  // other restore points; the pin keeps these objects.
  void PinnedUnpublished(const std::string& tenant, const LookupPlan& plan);
  bool Knows(const Digest& id) const { return names_.count(id) > 0; }
  // While true, restore points may disappear, because a Drop call is running.
  void SetDropping(bool dropping) { dropping_ = dropping; }
  // Removes an object and all restore points that need it, loaded or not. If `for_good` is false,
  // deleting from the disk failed, and a restart may find the object again.
  void Quarantined(const std::string& object, bool for_good);

  // Checks the answer to a lookup: invariants 1, 12, 14, 26 and 28.
  void CheckPlan(const PrefixQuery& query, uint32_t max_tokens, const LookupPlan& plan);

  enum class Death { kClose, kProcess, kMachine };
  // Records that the store died. Restore points that were only promised to survive a lesser kind of
  // death may be lost. `listed`: the restore points before a clean close.
  void Died(Death death, bool is_clean, const std::vector<RestorePoint>& listed);
  // Call this when the store has loaded its index again: checks invariants 6 and 23. `may_damage`:
  // restore points may be lost, because the disk was damaged.
  void Reopened(const std::vector<RestorePoint>& listed, bool may_damage);
  // Returns the promised restore points that are not in `listed`.
  std::vector<std::string> Missing(const std::vector<RestorePoint>& listed) const;
  // Returns the ids of the promised restore points, each with the end of the promise.
  std::map<Digest, absl::Time> Promised() const;
  uint64_t promises() const { return promises_; }

 private:
  struct Point {
    uint32_t tokens = 0;
    // durability that was acknowledged; kDefault: nothing was promised
    Durability promised = Durability::kDefault;
    // The earliest possible expiry for each acknowledged durability: memory, disk and sync.
    std::array<absl::Time, 3> earliest_end = {absl::InfinitePast(), absl::InfinitePast(),
                                              absl::InfinitePast()};
    absl::Time latest_end = absl::InfinitePast();
    // is_pinned: the pin is acknowledged; was_pinned: it was pinned at some time
    bool is_pinned = false, was_pinned = false;
    bool may_be_there = false;  // the restore point may be stored, although that was not promised
    bool has_id = false;
    Digest id{};
  };

  bool MustExist(const Point& point) const;
  void Forget(Point* point);

  Timeline* const time_;
  const KvLayout layout_;
  const TenantQuotas* const quotas_;
  std::map<std::string, Point> points_;  // the key is the PrefixName
  std::map<Digest, std::string> names_;  // PrefixName of each restore point, by id
  // For each object: the names of the restore points that need it.
  std::map<std::string, std::set<std::string>> objects_;
  std::set<std::string> quarantined_;
  std::set<Digest> reported_pinned_;
  std::set<Digest> closed_with_;  // ids of the restore points that existed at a clean close
  // Ids stored before a start that found damage. A later publish may make such a restore point
  // usable again, for example by storing its fingerprint.
  std::set<Digest> missed_;
  bool closed_cleanly_ = false, dropping_ = false;
  uint64_t promises_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SIMULATION_LEDGER_H_
