#include "cache_store/retention/learning_retention.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/hash/hash.h"
#include "cache_store/retention/return_model.h"
#include "cache_store/retention/victim_order.h"

namespace hearth {
namespace {

// The learned worth is updated after at least kLearnRequests requests and at least kLearnEvery.
constexpr uint64_t kLearnRequests = 50;
constexpr absl::Duration kLearnEvery = absl::Seconds(1);
// Advance() runs at most once in kAdvanceEvery and moves at most kAdvanceUnits units, so that the
// first request after a quiet hour does not wait until all units have moved.
constexpr absl::Duration kAdvanceEvery = absl::Milliseconds(250);
constexpr int kAdvanceUnits = 2000;

class LearningRetention final : public Retention {
 public:
  explicit LearningRetention(Depend depend) : depend_(depend) {}

  void Touch(absl::Span<const Key> path, uint32_t prompt_tokens, absl::Time now) override {
    now_ = std::max(now_, now);
    ++tick_;
    Advance();
    Learn();
    Unit* remainder = nullptr;
    const std::vector<Unit*> known = KnownOn(path, &remainder);
    const Use use = Classify(known, prompt_tokens);
    for (size_t i = 0; i < known.size(); ++i) {
      Unit* unit = known[i];
      if (depend_ == Depend::kNothing && i + 1 < known.size()) {
        StartLife(unit, PassedClass(unit->children_seen, false));
      } else {
        model_.Return(unit->unit_class, unit->age, unit->gain_tokens);
        StartLife(unit, i < use.hub      ? use.hub_class
                        : i < use.shared ? use.shared_class
                                         : use.added_class);
      }
      // For units that are not shared by many requests, this request is the next turn of the
      // conversation.
      if (i >= use.hub) unit->turn = use.turn;
    }
    if (remainder != nullptr) {
      model_.Return(remainder->unit_class, remainder->age, remainder->gain_tokens);
      StartLife(remainder, remainder->unit_class);
    }
  }

  void Renew(absl::Span<const Key> path, absl::Time now) override {
    now_ = std::max(now_, now);
    ++tick_;
    Unit* remainder = nullptr;
    std::vector<Unit*> known = KnownOn(path, &remainder);
    if (remainder != nullptr) known.push_back(remainder);
    for (Unit* unit : known) {
      RemoveFromCell(unit);
      unit->age = 0;
      unit->set_used(now_);
      unit->tick = tick_;
      AddToCell(unit);
    }
  }

  void Insert(Key key, const Facts& facts, const Prompt& prompt) override {
    now_ = std::max(now_, prompt.now);
    bool is_new = false;
    Unit* unit = FindOrAdd(key, facts, &is_new);
    Unit* parent = unit->has_parent ? Find(unit->parent) : nullptr;
    if (is_new) {
      ClassifyNew(unit, parent, prompt);
      unit->added_by = prompt.number;
      unit->set_used(now_);
      unit->tick = tick_;
      if (facts.remainder) unit->unit_class = static_cast<int16_t>(RemainderClass());
      if (!facts.remainder) unit->unit_class = unit->added_class;
      model_.Enter(unit->unit_class, 0, unit->gain_tokens);
    }
    AddToCell(unit);
    if (depend_ == Depend::kNothing && parent != nullptr && unit->held_members == 1) {
      const bool by_same_request = prompt.number != 0 && parent->added_by == prompt.number;
      StartLife(parent, PassedClass(parent->children_seen, by_same_request));
    }
  }

  void Adopt(Key key, const Facts& facts, bool has_child, absl::Time used,
             absl::Time now) override {
    now_ = std::max(now_, now);
    bool is_new = false;
    Unit* unit = FindOrAdd(key, facts, &is_new);
    if (is_new) {
      ClassifyNew(unit, nullptr, Prompt{0, facts.tokens, now_});
      if (has_child) unit->unit_class = static_cast<int16_t>(PassedClass(1, false));
      if (!has_child) unit->unit_class = unit->added_class;
      unit->age = static_cast<uint8_t>(ReturnModel::AgeOf(now_ - used));
      unit->set_used(used);
      unit->tick = --oldest_tick_;
      model_.Enter(unit->unit_class, unit->age, unit->gain_tokens);
    }
    AddToCell(unit, unit->tick == oldest_tick_);
  }

  void SetEvictable(Key key, bool offered) override {
    Unit* unit = Find(key);
    assert(unit != nullptr);
    for (Member& member : unit->members) {
      if (member.key != key || member.offered == offered) continue;
      assert(member.held);
      if (MayBeOffered(*unit)) OfferMember(*unit, member, offered);
      member.offered = offered;
    }
  }

  void SetWeight(Key key, int weight) override {
    Unit* unit = Find(key);
    assert(unit != nullptr);
    if (unit->weight == weight) return;
    RemoveFromCell(unit);
    unit->weight = weight;
    AddToCell(unit);
  }

  void Erase(Key key, bool remember) override {
    Unit* unit = Find(key);
    assert(unit != nullptr && unit->held_members > 0);
    SetEvictable(key, false);
    for (Member& member : unit->members) {
      if (member.key == key) member.held = false;
    }
    --held_;
    if (--unit->held_members > 0) return;
    Unit* parent = unit->has_parent ? Find(unit->parent) : nullptr;
    if (parent != nullptr && parent->held_children > 0) ChangeChildren(parent, -1);
    if (!remember) {
      Forget(unit);
      return;
    }
    unit->given_up = ++next_given_up_;
    given_up_.emplace(unit->given_up, unit);
    if (given_up_.size() <= kRememberedMax) return;
    Unit* first = given_up_.begin()->second;
    given_up_.erase(given_up_.begin());
    Forget(first);
  }

  bool Contains(Key key) const override {
    const Unit* unit = Find(key);
    if (unit == nullptr) return false;
    for (const Member& member : unit->members) {
      if (member.key == key) return member.held;
    }
    return false;
  }

  void Visit(absl::FunctionRef<Answer(Key)> take) override { offered_.Visit(take); }
  void VisitOwned(Owner owner, absl::FunctionRef<Answer(Key)> take) override {
    offered_.VisitOwned(owner, take);
  }

  size_t held() const override { return held_; }
  size_t remembered() const override { return given_up_.size(); }

 private:
  struct Member {
    Key key = 0;
    uint32_t tokens = 0;
    bool held = false;
    bool offered = false;
  };
  // Computation that a unit saves per byte, as 2 * log2: per byte of the whole unit, and per byte
  // of its tail.
  struct Density {
    int16_t of_whole = 0, of_tail = 0;
    int16_t now = 0;  // the value that applies now
  };
  // One eviction unit. There may be millions of units, so their size matters.
  struct Unit {
    // keys of the unit: one, or a few that Facts::with joined
    absl::InlinedVector<Member, 1> members;
    Key parent = 0;  // key of the parent unit; valid if has_parent
    bool has_parent = false;
    bool remainder = false;
    uint8_t age = 0;
    int16_t added_class = 0, unit_class = 0;
    Density density;
    uint32_t tokens = 0, gain_tokens = 0;
    uint32_t held_members = 0;
    uint32_t held_children = 0;
    uint32_t children_seen = 0;
    uint32_t turn = 1;  // number of requests that created and extended the unit's chain
    Owner owner = 0;
    int weight = 0;
    uint64_t added_by = 0;  // number of the request that added the unit
    uint64_t tick = 0;
    uint64_t given_up = 0;  // key in given_up_ if all members are evicted
    int64_t used_unix_ns = 0;
    Unit* older = nullptr;  // neighbours in the list of the unit's cell
    Unit* newer = nullptr;

    absl::Time used() const { return absl::FromUnixNanos(used_unix_ns); }
    void set_used(absl::Time time) { used_unix_ns = absl::ToUnixNanos(time); }
  };
  // Hash of a unit: of its first member's key. joined_ has the keys of the other members.
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
  using CellId = VictimOrder::Class;  // (density, class, age, weight)
  struct Cell {
    Unit* oldest = nullptr;  // list of all units of the cell, held or remembered, by last use
    Unit* newest = nullptr;
  };
  // The classes that a request gives to the units that it uses.
  struct Use {
    int added_class = 0;   // class of units that no other request uses
    int shared_class = 0;  // class of units that few other requests use
    int hub_class = 0;     // class of units that many requests use
    // number of leading units of the path that other requests use; that many requests use
    size_t shared = 0, hub = 0;
    uint32_t turn = 1;
  };

  Unit* Find(Key key) const {
    const auto found = units_.find(key);
    if (found != units_.end()) return found->get();
    const auto joined = joined_.find(key);
    return joined == joined_.end() ? nullptr : joined->second;
  }

  // Returns the known units of a path, shortest prefix first, each once; sets `*remainder` to the
  // unit of a partial block, if there is one.
  std::vector<Unit*> KnownOn(absl::Span<const Key> path, Unit** remainder) const {
    std::vector<Unit*> known;
    for (const Key key : path) {
      Unit* unit = Find(key);
      if (unit == nullptr) {
        if (depend_ == Depend::kOnParent) break;
      } else if (unit->remainder) {
        *remainder = unit;
      } else if (known.empty() || known.back() != unit) {
        known.push_back(unit);
      }
    }
    return known;
  }

  Use Classify(const std::vector<Unit*>& path, uint32_t prompt_tokens) const {
    const uint32_t known = path.empty() ? 0 : path.back()->tokens;
    const uint32_t fresh_tokens = prompt_tokens > known ? prompt_tokens - known : 0;
    Use use;
    uint32_t children = 0, hub_children = 0;
    for (size_t i = 0; i < path.size(); ++i) {
      const bool gets_another = i + 1 == path.size() && fresh_tokens > 0;
      children = path[i]->children_seen + (gets_another ? 1 : 0);
      if (children >= 2) use.shared = i + 1;
      if (children < kHubChildren) continue;
      use.hub = i + 1;
      hub_children = children;
    }
    const bool own = path.size() > use.hub;
    if (own) use.turn = path.back()->turn + 1;
    use.added_class = AddedClass(use.turn, own ? children : 0, fresh_tokens, prompt_tokens);
    use.shared_class = SharedClass(use.turn, prompt_tokens);
    use.hub_class = HubClass(hub_children);
    return use;
  }

  // Finds or creates the unit of the key, marks the key as held, and removes the unit from its
  // cell.
  Unit* FindOrAdd(Key key, const Facts& facts, bool* is_new) {
    Unit* unit = Find(key);
    Unit* with = facts.with.has_value() ? Find(*facts.with) : nullptr;
    *is_new = unit == nullptr && with == nullptr;
    if (unit == nullptr) {
      std::unique_ptr<Unit> made = with == nullptr ? std::make_unique<Unit>() : nullptr;
      unit = with == nullptr ? made.get() : with;
      unit->members.push_back(Member{key, facts.tokens});
      if (made != nullptr) {
        units_.insert(std::move(made));
      } else {
        joined_.emplace(key, unit);
      }
    }
    if (!*is_new) RemoveFromCell(unit);
    unit->owner = facts.owner;
    if (unit->held_members == 0 && !*is_new) given_up_.erase(unit->given_up);
    if (unit->held_members == 0) unit->weight = 0;
    if (facts.tokens >= unit->tokens) {
      unit->tokens = facts.tokens;
      unit->gain_tokens = std::max(1u, facts.gain_tokens);
      const auto density = [&](uint64_t bytes) {
        return static_cast<int16_t>(facts.cost_steps + DensityOf(unit->gain_tokens, bytes));
      };
      unit->density.of_whole = density(facts.bytes);
      unit->density.of_tail = density(facts.tail_bytes);
      unit->remainder = facts.remainder;
    }
    Unit* parent = facts.parent.has_value() ? Find(*facts.parent) : nullptr;
    if (parent == unit) parent = nullptr;
    if (unit->held_members == 0) {
      unit->has_parent = parent != nullptr;
      if (parent != nullptr) unit->parent = *facts.parent;
      if (parent != nullptr) {
        if (*is_new && !facts.remainder) ++parent->children_seen;
        ChangeChildren(parent, 1);
      }
    }
    for (Member& member : unit->members) {
      if (member.key != key) continue;
      assert(!member.held);
      member.held = true;
      member.offered = true;
    }
    ++unit->held_members;
    ++held_;
    return unit;
  }

  void ClassifyNew(Unit* unit, const Unit* parent, const Prompt& prompt) const {
    if (parent != nullptr && prompt.number != 0 && parent->added_by == prompt.number) {
      unit->turn = parent->turn;
      unit->added_class = parent->added_class;
      return;
    }
    const uint32_t fresh = prompt.tokens - std::min(prompt.tokens, parent ? parent->tokens : 0);
    // `turn` of the parent already counts this request (Touch() has increased it).
    const bool own = parent != nullptr && parent->children_seen < kHubChildren;
    unit->turn = own ? parent->turn : 1;
    unit->added_class = static_cast<int16_t>(
        AddedClass(unit->turn, own ? parent->children_seen : 0, fresh, prompt.tokens));
  }

  void Forget(Unit* unit) {
    RemoveFromCell(unit);
    for (size_t i = 1; i < unit->members.size(); ++i) joined_.erase(unit->members[i].key);
    units_.erase(units_.find(unit->members[0].key));
  }

  // Call when a unit is used: starts a new life of the unit, at age 0 and in the given class.
  void StartLife(Unit* unit, int unit_class) {
    RemoveFromCell(unit);
    unit->unit_class = static_cast<int16_t>(unit_class);
    unit->age = 0;
    unit->set_used(now_);
    unit->tick = tick_;
    model_.Enter(unit->unit_class, 0, unit->gain_tokens);
    AddToCell(unit);
  }

  // Returns the worth of a unit in the cell, rounded down to quarters of log2. Smaller differences
  // are noise: the last use then decides.
  int WorthOf(const CellId& id) const {
    const auto& [density, unit_class, age, weight] = id;
    const double worth = std::max(1e-30, model_.Worth(unit_class, age) * std::exp2(density / 2.0));
    return static_cast<int>(std::floor(kDoubleWorth * std::log2(worth)));
  }

  // Adds the unit to its cell as the most recently used one; with `as_oldest`, as the least
  // recently used one.
  void AddToCell(Unit* unit, bool as_oldest = false) {
    Density& density = unit->density;
    density.now = IsPassedClass(unit->unit_class) ? density.of_tail : density.of_whole;
    Cell& cell = cells_[CellOf(*unit)];
    unit->older = as_oldest ? nullptr : cell.newest;
    unit->newer = as_oldest ? cell.oldest : nullptr;
    (unit->older != nullptr ? unit->older->newer : cell.oldest) = unit;
    (unit->newer != nullptr ? unit->newer->older : cell.newest) = unit;
    if (MayBeOffered(*unit)) Offer(*unit, true);
  }

  void RemoveFromCell(Unit* unit) {
    if (MayBeOffered(*unit)) Offer(*unit, false);
    Cell& cell = cells_.at(CellOf(*unit));
    (unit->older != nullptr ? unit->older->newer : cell.oldest) = unit->newer;
    (unit->newer != nullptr ? unit->newer->older : cell.newest) = unit->older;
    unit->older = unit->newer = nullptr;
  }

  bool MayBeOffered(const Unit& unit) const {
    return depend_ == Depend::kNothing || unit.held_children == 0;
  }

  void ChangeChildren(Unit* unit, int by) {
    const bool was = MayBeOffered(*unit);
    if (was) Offer(*unit, false);
    unit->held_children += by;
    if (MayBeOffered(*unit)) Offer(*unit, true);
  }

  void Offer(const Unit& unit, bool offered) {
    for (const Member& member : unit.members) {
      if (member.offered) OfferMember(unit, member, offered);
    }
  }

  void OfferMember(const Unit& unit, const Member& member, bool offered) {
    const VictimOrder::Place place{unit.tick, ~member.tokens, member.key};
    if (offered) {
      const auto worth = [this](const CellId& id) { return WorthOf(id); };
      offered_.Add(unit.owner, CellOf(unit), place, worth);
    } else {
      offered_.Remove(unit.owner, CellOf(unit), place);
    }
  }

  // Moves units to the cells of their current age, oldest units first, so that each cell stays in
  // the order of last use.
  void Advance() {
    if (now_ - advanced_ < kAdvanceEvery) return;
    int left = kAdvanceUnits;
    for (auto cell = cells_.end(); cell != cells_.begin();) {
      --cell;  // cells that this loop inserts come after this one
      const int age = std::get<2>(cell->first);
      if (age + 1 >= ReturnModel::kAges) continue;
      const absl::Duration end = ReturnModel::AgeBegin(age + 1);
      Unit* unit = cell->second.oldest;
      while (unit != nullptr && now_ - unit->used() >= end) {
        if (left-- == 0) return;
        Unit* const newer = unit->newer;
        RemoveFromCell(unit);
        const int reached = ReturnModel::AgeOf(now_ - unit->used());
        while (unit->age < reached) {
          ++unit->age;
          model_.Enter(unit->unit_class, unit->age, unit->gain_tokens);
        }
        AddToCell(unit);
        unit = newer;
      }
    }
    advanced_ = now_;
  }

  void Learn() {
    if (learnt_ != absl::InfinitePast() &&
        (++touches_ < kLearnRequests || now_ - learnt_ < kLearnEvery)) {
      return;
    }
    touches_ = 0;
    learnt_ = now_;
    model_.Learn();
    for (auto next = cells_.begin(); next != cells_.end();) {
      const auto cell = next++;
      if (cell->second.oldest == nullptr) cells_.erase(cell);
    }
    offered_.Weigh([this](const CellId& id) { return WorthOf(id); });
  }

  CellId CellOf(const Unit& unit) const {
    return {unit.density.now, unit.unit_class, unit.age, unit.weight};
  }

  const Depend depend_;
  ReturnModel model_;
  absl::flat_hash_set<std::unique_ptr<Unit>, FirstKeyHash, SameFirstKey>
      units_;  // all units, held or remembered
  absl::flat_hash_map<Key, Unit*> joined_;
  size_t held_ = 0;
  std::map<CellId, Cell> cells_;
  VictimOrder offered_;
  std::map<uint64_t, Unit*> given_up_;  // remembered (evicted) units, in order of eviction
  uint64_t next_given_up_ = 0;
  // number of the last request; adopted units get descending numbers below 2^32
  uint64_t tick_ = uint64_t{1} << 32;
  uint64_t oldest_tick_ = uint64_t{1} << 32;
  uint64_t touches_ = 0;  // number of requests since the last Learn()
  absl::Time now_ = absl::InfinitePast();
  absl::Time advanced_ = absl::InfinitePast();
  absl::Time learnt_ = absl::InfinitePast();
};

}  // namespace

std::unique_ptr<Retention> MakeLearningRetention(Retention::Depend depend) {
  return std::make_unique<LearningRetention>(depend);
}

}  // namespace hearth
