// Ledger: knows which restore points a store must have, may have and must not have, from calls and
// their answers.
//
// Identifies restore points by tenant, tokens and cuts, as any caller could; their ids are learnt
// from the store. Times are the store's own. Thread safety: none.
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

// The name of a prompt's beginning: everything that decides what is stored of it.
std::string PrefixName(const std::string& tenant, const std::vector<uint32_t>& tokens,
                       const std::vector<uint32_t>& cuts, uint32_t end, const KvLayout& layout);
std::string ObjectName(const std::string& tenant, const std::vector<uint32_t>& tokens,
                       const std::vector<uint32_t>& cuts, const ObjectId& id,
                       const KvLayout& layout);

class Ledger {
 public:
  Ledger(Timeline* time, const KvLayout& layout, const TenantQuotas* quotas)
      : time_(time), layout_(layout), quotas_(quotas) {}

  // A publish is about to be committed: `put` are the objects whose bytes came with it.
  void Committing(const PublishSpec& spec, const std::vector<uint32_t>& put);
  void Committed(const PublishSpec& spec, const PublishResult& result);
  // After an error some of it may be there.
  void CommitFailed(const PublishSpec& spec);
  // The store's id of a point.
  void Learn(const std::string& name, const Digest& id);
  void OnEvent(const StoreEvent& event, bool may_damage, bool may_evict);
  // Compares the pins in events with those of a list, from `listed` on.
  void BeginPins(const std::vector<RestorePoint>& listed);
  void CheckPins(const std::vector<RestorePoint>& listed);
  // A pin was acknowledged.
  void Pinned(const Digest& id);
  // A pin of a point that nobody published: a lookup made it of others' objects, which the pin
  // keeps.
  void PinnedUnpublished(const std::string& tenant, const LookupPlan& plan);
  bool Knows(const Digest& id) const { return names_.count(id) > 0; }
  // Points that leave from here on were dropped by a call.
  void SetDropping(bool dropping) { dropping_ = dropping; }
  // With all points that name it, whether the store has loaded them or not. Not `for_good`: the
  // disk failed, and a start may find it again.
  void Quarantined(const std::string& object, bool for_good);

  // A lookup answered this; 12, 14 and 26.
  void CheckPlan(const PrefixQuery& query, uint32_t max_tokens, const LookupPlan& plan);

  enum class Death { kClose, kProcess, kMachine };
  // The store died, and with it all that was promised for less than such a death.
  void Died(Death death, bool is_clean, const std::vector<RestorePoint>& listed);
  // The index is there again: checks 6 and 23. `may_damage`: losses are allowed.
  void Reopened(const std::vector<RestorePoint>& listed, bool may_damage);
  // Promised points that are not there.
  std::vector<std::string> Missing(const std::vector<RestorePoint>& listed) const;
  // Promised points by id, with their ends.
  std::map<Digest, absl::Time> Promised() const;
  uint64_t promises() const { return promises_; }

 private:
  struct Point {
    uint32_t tokens = 0;
    Durability promised = Durability::kDefault;  // kDefault: nothing
    // Its earliest end, by acknowledgements as memory, as disk, as sync.
    std::array<absl::Time, 3> earliest_end = {absl::InfinitePast(), absl::InfinitePast(),
                                              absl::InfinitePast()};
    absl::Time latest_end = absl::InfinitePast();
    bool is_pinned = false, was_pinned = false;  // acknowledged; or maybe, some time
    bool may_be_there = false;                   // promised or not
    bool has_id = false;
    Digest id{};
  };

  bool MustExist(const Point& point) const;
  void Forget(Point* point);

  Timeline* const time_;
  const KvLayout layout_;
  const TenantQuotas* const quotas_;
  std::map<std::string, Point> points_;                   // by name
  std::map<Digest, std::string> names_;                   // of points, by id
  std::map<std::string, std::set<std::string>> objects_;  // and the points that name them
  std::set<std::string> quarantined_;
  std::set<Digest> reported_pinned_;
  std::set<Digest> closed_with_;  // what a clean close left
  // There before a start that found damage: a missing part (a fingerprint) may be published again.
  std::set<Digest> missed_;
  bool closed_cleanly_ = false, dropping_ = false;
  uint64_t promises_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SIMULATION_LEDGER_H_
