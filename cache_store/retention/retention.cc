#include "cache_store/retention/retention.h"

#include <array>
#include <cassert>

#include "absl/container/flat_hash_map.h"
#include "cache_store/retention/learning_retention.h"
#include "cache_store/retention/victim_order.h"

namespace hearth {
namespace {

// The least recently used unit goes first, and of those used by one request the longest, so that
// children go before parents. Does not remember units that went.
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
    Add(key, Unit{++tick_, facts.tokens, facts.owner, {}});
  }
  void Adopt(Key key, const Facts& facts, bool, absl::Time, absl::Time) override {
    Add(key, Unit{--oldest_tick_, facts.tokens, facts.owner, {}});
  }
  void SetEvictable(Key key, Scope scope, bool offered) override {
    Unit& unit = units_.at(key);
    const size_t place = static_cast<size_t>(scope);
    if (unit.offered[place] == offered) return;
    unit.offered[place] = offered;
    Offer(key, unit, place, offered);
  }
  void Erase(Key key, bool) override {
    SetEvictable(key, Scope::kStore, false);
    SetEvictable(key, Scope::kHost, false);
    units_.erase(key);
  }
  void Visit(Scope scope, absl::FunctionRef<Answer(Key)> take) override {
    offered_[static_cast<size_t>(scope)].Visit(take);
  }
  void VisitOwned(Scope scope, Owner owner, absl::FunctionRef<Answer(Key)> take) override {
    offered_[static_cast<size_t>(scope)].VisitOwned(owner, take);
  }
  bool Contains(Key key) const override { return units_.contains(key); }
  size_t held() const override { return units_.size(); }
  size_t remembered() const override { return 0; }

 private:
  struct Unit {
    uint64_t tick = 0;
    uint32_t tokens = 0;
    Owner owner = 0;
    std::array<bool, kScopes> offered{};
  };

  void Offer(Key key, const Unit& unit, size_t scope, bool offered) {
    const VictimOrder::Place place{unit.tick, ~unit.tokens, key};
    if (offered) {
      // All units are of one class: only their last use tells them apart.
      offered_[scope].Add(unit.owner, {}, place, [](const VictimOrder::Class&) { return 0; });
    } else {
      offered_[scope].Remove(unit.owner, {}, place);
    }
  }
  void Add(Key key, const Unit& unit) {
    const bool inserted = units_.emplace(key, unit).second;
    assert(inserted);
    SetEvictable(key, Scope::kStore, true);
  }
  void SetTick(Key key, Unit* unit, uint64_t tick) {
    for (size_t scope = 0; scope < kScopes; ++scope) {
      if (unit->offered[scope]) Offer(key, *unit, scope, false);
    }
    unit->tick = tick;
    for (size_t scope = 0; scope < kScopes; ++scope) {
      if (unit->offered[scope]) Offer(key, *unit, scope, true);
    }
  }

  uint64_t tick_ = uint64_t{1} << 32;  // adopted units count down from here
  uint64_t oldest_tick_ = uint64_t{1} << 32;
  absl::flat_hash_map<Key, Unit> units_;
  std::array<VictimOrder, kScopes> offered_;
};

}  // namespace

std::unique_ptr<Retention> MakeRetention(RetentionPolicy policy, Retention::Depend depend) {
  if (policy == RetentionPolicy::kLru) return std::make_unique<LruRetention>();
  return std::make_unique<LearningRetention>(depend);
}

}  // namespace hearth
