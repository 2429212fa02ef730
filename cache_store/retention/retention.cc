#include "cache_store/retention/retention.h"

#include <cassert>

#include "absl/container/flat_hash_map.h"
#include "cache_store/retention/learning_retention.h"
#include "cache_store/retention/victim_order.h"

namespace hearth {
namespace {

// The LRU policy: evicts the least recently used unit. Among units that one request used, it evicts
// the longest first, so that children go before their parents. It does not remember evicted units.
class LruRetention final : public Retention {
 public:
  void Touch(absl::Span<const Key> path, uint32_t, absl::Time) override {
    ++tick_;
    for (const Key key : path) {
      const auto found = units_.find(key);
      if (found != units_.end()) SetTick(key, &found->second, tick_);
    }
  }
  void Renew(absl::Span<const Key> path, absl::Time now) override { Touch(path, 0, now); }
  void Insert(Key key, const Facts& facts, const Prompt&) override {
    Add(key, Unit{++tick_, facts.tokens, facts.owner, 0, false});
  }
  void Adopt(Key key, const Facts& facts, bool, absl::Time, absl::Time) override {
    Add(key, Unit{--oldest_tick_, facts.tokens, facts.owner, 0, false});
  }
  void SetEvictable(Key key, bool offered) override {
    Unit& unit = units_.at(key);
    if (unit.offered == offered) return;
    unit.offered = offered;
    Offer(key, unit, offered);
  }
  void SetWeight(Key key, int weight) override {
    Unit& unit = units_.at(key);
    if (unit.offered) Offer(key, unit, false);
    unit.weight = weight;
    if (unit.offered) Offer(key, unit, true);
  }
  void Erase(Key key, bool) override {
    SetEvictable(key, false);
    units_.erase(key);
  }
  void Visit(absl::FunctionRef<Answer(Key)> take) override { offered_.Visit(take); }
  void VisitOwned(Owner owner, absl::FunctionRef<Answer(Key)> take) override {
    offered_.VisitOwned(owner, take);
  }
  bool Contains(Key key) const override { return units_.contains(key); }
  size_t held() const override { return units_.size(); }
  size_t remembered() const override { return 0; }

 private:
  struct Unit {
    uint64_t tick = 0;
    uint32_t tokens = 0;
    Owner owner = 0;
    int weight = 0;
    bool offered = false;
  };

  void Offer(Key key, const Unit& unit, bool offered) {
    const VictimOrder::Place place{unit.tick, ~unit.tokens, key};
    if (offered) {
      // All units have the same class, so only last use and weight distinguish them.
      offered_.Add(unit.owner, {0, 0, 0, unit.weight}, place,
                   [](const VictimOrder::Class&) { return 0; });
    } else {
      offered_.Remove(unit.owner, {0, 0, 0, unit.weight}, place);
    }
  }
  void Add(Key key, const Unit& unit) {
    const bool inserted = units_.emplace(key, unit).second;
    assert(inserted);
    SetEvictable(key, true);
  }
  void SetTick(Key key, Unit* unit, uint64_t tick) {
    if (unit->offered) Offer(key, *unit, false);
    unit->tick = tick;
    if (unit->offered) Offer(key, *unit, true);
  }

  // Number of the last request. Units from before a restart (Adopt) get descending numbers below
  // 2^32, so they count as older than all others.
  uint64_t tick_ = uint64_t{1} << 32;
  uint64_t oldest_tick_ = uint64_t{1} << 32;
  absl::flat_hash_map<Key, Unit> units_;
  VictimOrder offered_;
};

}  // namespace

std::unique_ptr<Retention> MakeRetention(RetentionPolicy policy, Retention::Depend depend) {
  if (policy == RetentionPolicy::kLru) return std::make_unique<LruRetention>();
  return MakeLearningRetention(depend);
}

}  // namespace hearth
