// LearningRetention: gives up first the unit that saves the least computation for each byte and
// second.
//
// The chance of a return is learnt (return_model.h) for classes of units: how many requests have
// extended the chain so far, how often it branched where the unit hangs, how long the prompt was
// and how much of it was new. Units of one class and one age wait in one cell, least recently used
// first, so finding a victim means looking at the first unit of the cell with the least worth.
//
// Private to cache_store: callers use MakeRetention.
#ifndef HEARTH_CACHE_STORE_RETENTION_LEARNING_RETENTION_H_
#define HEARTH_CACHE_STORE_RETENTION_LEARNING_RETENTION_H_

#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/hash/hash.h"
#include "cache_store/retention/retention.h"
#include "cache_store/retention/return_model.h"
#include "cache_store/retention/victim_order.h"

namespace hearth {

class LearningRetention final : public Retention {
 public:
  explicit LearningRetention(Depend depend) : depend_(depend) {}

  void Touch(absl::Span<const Key> path, uint32_t prompt_tokens, absl::Time now) override;
  void Renew(absl::Span<const Key> path, absl::Time now) override;
  void Insert(Key key, const Facts& facts, const Prompt& prompt) override;
  void Adopt(Key key, const Facts& facts, bool has_child, absl::Time used, absl::Time now) override;
  void SetEvictable(Key key, bool offered) override;
  void SetWeight(Key key, int weight) override;
  void Erase(Key key, bool remember) override;
  void Visit(absl::FunctionRef<Answer(Key)> take) override { offered_.Visit(take); }
  void VisitOwned(Owner owner, absl::FunctionRef<Answer(Key)> take) override {
    offered_.VisitOwned(owner, take);
  }
  bool Contains(Key key) const override;
  size_t held() const override { return held_; }
  size_t remembered() const override { return given_up_.size(); }

 private:
  struct Member {
    Key key = 0;
    uint32_t tokens = 0;
    bool held = false;
    bool offered = false;
  };
  // The computation that a unit saves for each byte, log2 in halves.
  struct Density {
    int16_t of_whole = 0, of_tail = 0;
    int16_t now = 0;  // the one of the two that counts
  };
  // There are millions: its size counts.
  struct Unit {
    absl::InlinedVector<Member, 1> members;  // one or, joined by Facts::with, a few
    Key parent = 0;                          // if it has one
    bool has_parent = false;
    bool remainder = false;
    uint8_t age = 0;
    int16_t added_class = 0, unit_class = 0;
    Density density;
    uint32_t tokens = 0, gain_tokens = 0;
    uint32_t held_members = 0;
    uint32_t held_children = 0;
    uint32_t children_seen = 0;
    uint32_t turn = 1;  // requests that made and extended its chain
    Owner owner = 0;
    int weight = 0;
    uint64_t added_by = 0;  // the request that it was new to
    uint64_t tick = 0;
    uint64_t given_up = 0;  // place in given_up_, when nothing of it is held
    int64_t used_unix_ns = 0;
    Unit* older = nullptr;  // in its cell
    Unit* newer = nullptr;

    absl::Time used() const { return absl::FromUnixNanos(used_unix_ns); }
    void set_used(absl::Time time) { used_unix_ns = absl::ToUnixNanos(time); }
  };
  // By the key of its first member; those of the others are in joined_.
  struct FirstKeyHash {
    using is_transparent = void;
    size_t operator()(Key key) const { return absl::Hash<Key>()(key); }
    size_t operator()(const std::unique_ptr<Unit>& unit) const {
      return (*this)(unit->members[0].key);
    }
  };
  struct SameFirstKey {
    using is_transparent = void;
    using UnitPtr = std::unique_ptr<Unit>;
    bool operator()(const UnitPtr& a, const UnitPtr& b) const { return (*this)(a, KeyOf(b)); }
    bool operator()(const UnitPtr& a, Key b) const { return KeyOf(a) == b; }
    bool operator()(Key a, const UnitPtr& b) const { return a == KeyOf(b); }
    static Key KeyOf(const UnitPtr& unit) { return unit->members[0].key; }
  };
  using CellId = VictimOrder::Class;  // density, class, age and weight
  struct Cell {
    Unit* oldest = nullptr;  // of all, held or remembered, in order of use
    Unit* newest = nullptr;
  };
  // A request's verdict on the units it uses.
  struct Use {
    int added_class = 0;         // of what only it extends
    int shared_class = 0;        // of what it shares with others
    int hub_class = 0;           // of what many share
    size_t shared = 0, hub = 0;  // how many units of the path, from the root
    uint32_t turn = 1;
  };

  Unit* Find(Key key) const;
  std::vector<Unit*> KnownOn(absl::Span<const Key> path, Unit** remainder) const;
  Use Classify(const std::vector<Unit*>& path, uint32_t prompt_tokens) const;
  void ClassifyNew(Unit* unit, const Unit* parent, const Prompt& prompt) const;
  Unit* FindOrAdd(Key key, const Facts& facts, bool* is_new);
  // A use ends a unit's life, and the next one begins.
  void StartLife(Unit* unit, int unit_class);
  // Into its cell and out of it. `as_oldest`: before all others there.
  void AddToCell(Unit* unit, bool as_oldest = false);
  void RemoveFromCell(Unit* unit);
  CellId CellOf(const Unit& unit) const {
    return {unit.density.now, unit.unit_class, unit.age, unit.weight};
  }
  bool MayBeOffered(const Unit& unit) const;
  void ChangeChildren(Unit* unit, int by);
  void Offer(const Unit& unit, bool offered);
  void OfferMember(const Unit& unit, const Member& member, bool offered);
  int WorthOf(const CellId& id) const;
  void Forget(Unit* unit);
  void Advance();
  void Learn();

  const Depend depend_;
  ReturnModel model_;
  absl::flat_hash_set<std::unique_ptr<Unit>, FirstKeyHash, SameFirstKey> units_;  // or remembered
  absl::flat_hash_map<Key, Unit*> joined_;
  size_t held_ = 0;
  std::map<CellId, Cell> cells_;
  VictimOrder offered_;
  std::map<uint64_t, Unit*> given_up_;  // remembered units, in that order
  uint64_t next_given_up_ = 0;
  uint64_t tick_ = uint64_t{1} << 32;  // adopted units count down from here
  uint64_t oldest_tick_ = uint64_t{1} << 32;
  uint64_t touches_ = 0;  // since Learn
  absl::Time now_ = absl::InfinitePast();
  absl::Time advanced_ = absl::InfinitePast();
  absl::Time learnt_ = absl::InfinitePast();
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_RETENTION_LEARNING_RETENTION_H_
