// Ledger: records which restore points a store must have, may have and must not have, from calls
// and their answers.
//
// Identifies restore points by tenant, tokens and cuts, as any caller could; the store reports
// their ids. Times are of the store's clock. Thread safety: none.
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

// Returns a name for a prompt's prefix. It covers everything that determines the stored bytes.
std::string PrefixName(const std::string& tenant, const std::vector<uint32_t>& tokens,
                       const std::vector<uint32_t>& cuts, uint32_t end, const KvLayout& layout);
std::string ObjectName(const std::string& tenant, const std::vector<uint32_t>& tokens,
                       const std::vector<uint32_t>& cuts, const ObjectId& id,
                       const KvLayout& layout);

class Ledger {
 public:
  Ledger(Timeline* time, const KvLayout& layout, const TenantQuotas* quotas)
      : time_(time), layout_(layout), quotas_(quotas) {}

  // Call before a publish is committed. `put`: the objects whose bytes were sent.
  void Committing(const PublishSpec& spec, const std::vector<uint32_t>& put);
  void Committed(const PublishSpec& spec, const PublishResult& result);
  // After an error some of the publish may be stored.
  void CommitFailed(const PublishSpec& spec);
  // Records the store's id of a restore point.
  void Learn(const std::string& name, const Digest& id);
  void OnEvent(const StoreEvent& event, bool may_damage, bool may_evict);
  // Tracks pins by events, starting with the pins in `listed`; CheckPins compares them with a later
  // list.
  void BeginPins(const std::vector<RestorePoint>& listed);
  void CheckPins(const std::vector<RestorePoint>& listed);
  // Records an acknowledged pin.
  void Pinned(const Digest& id);
  // Records a pin of a restore point that was never published: a lookup created it from objects of
  // other restore points, and the pin keeps these objects.
  void PinnedUnpublished(const std::string& tenant, const LookupPlan& plan);
  bool Knows(const Digest& id) const { return names_.count(id) > 0; }
  // While true, restore points may disappear because a call dropped them.
  void SetDropping(bool dropping) { dropping_ = dropping; }
  // Removes the object and all restore points that need it, loaded or not. If not `for_good`, the
  // disk failed, and a restart may find the object again.
  void Quarantined(const std::string& object, bool for_good);

  // Checks the answer of a lookup: invariants 1, 12, 14, 26 and 28.
  void CheckPlan(const PrefixQuery& query, uint32_t max_tokens, const LookupPlan& plan);

  enum class Death { kClose, kProcess, kMachine };
  // Records the store's death: promises for less than such a death are void.
  void Died(Death death, bool is_clean, const std::vector<RestorePoint>& listed);
  // Call when the index is loaded again: checks invariants 6 and 23. `may_damage`: losses are
  // allowed.
  void Reopened(const std::vector<RestorePoint>& listed, bool may_damage);
  // Returns the promised restore points that are not listed.
  std::vector<std::string> Missing(const std::vector<RestorePoint>& listed) const;
  // Returns the promised restore points by id, with the time until which they are promised.
  std::map<Digest, absl::Time> Promised() const;
  uint64_t promises() const { return promises_; }

 private:
  struct Point {
    uint32_t tokens = 0;
    Durability promised = Durability::kDefault;  // kDefault: not promised
    // Earliest expiry, according to acknowledgements as memory, disk and sync.
    std::array<absl::Time, 3> earliest_end = {absl::InfinitePast(), absl::InfinitePast(),
                                              absl::InfinitePast()};
    absl::Time latest_end = absl::InfinitePast();
    bool is_pinned = false, was_pinned = false;  // acknowledged now; ever pinned
    bool may_be_there = false;                   // may be stored, promised or not
    bool has_id = false;
    Digest id{};
  };

  bool MustExist(const Point& point) const;
  void Forget(Point* point);

  Timeline* const time_;
  const KvLayout layout_;
  const TenantQuotas* const quotas_;
  std::map<std::string, Point> points_;  // by name
  std::map<Digest, std::string> names_;  // names of restore points, by id
  // names of the restore points that need each object
  std::map<std::string, std::set<std::string>> objects_;
  std::set<std::string> quarantined_;
  std::set<Digest> reported_pinned_;
  std::set<Digest> closed_with_;  // ids stored at a clean close
  // Ids stored before a start that found damage: a publish may restore a missing part, such as a
  // fingerprint.
  std::set<Digest> missed_;
  bool closed_cleanly_ = false, dropping_ = false;
  uint64_t promises_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SIMULATION_LEDGER_H_
