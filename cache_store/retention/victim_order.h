// VictimOrder: the order of eviction, separate for each owner, so that an owner over its limit
// loses its own units, and the units of an owner with guaranteed bytes are skipped without
// examining them.
//
// All units of a class have the same worth, and are ordered by last use, least recently used first.
// The class with the lowest worth comes first; among equal worth, the class with the least recently
// used unit. Within an owner, the weight of a class is added to its worth; the order of owners
// ignores weights. Private to cache_store: used by the policies of retention.h. Thread safety:
// none. Invariant: Add and Remove cost O(log n); the cost of the first offer does not depend on the
// number of units.
#ifndef HEARTH_CACHE_STORE_RETENTION_VICTIM_ORDER_H_
#define HEARTH_CACHE_STORE_RETENTION_VICTIM_ORDER_H_

#include <cstdint>
#include <memory>
#include <set>
#include <tuple>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "cache_store/retention/retention.h"

namespace hearth {

class VictimOrder {
 public:
  using Key = Retention::Key;
  using Owner = Retention::Owner;
  using Answer = Retention::Answer;
  using Class = std::tuple<int, int, int, int>;  // (density, class, age, weight)
  using WorthOf = absl::FunctionRef<int(const Class&)>;
  // (tick of the last use, ~tokens (longest first), key)
  using Place = std::tuple<uint64_t, uint32_t, Key>;

  using Places = absl::btree_set<Place>;

  // Adds a unit. If the class is new, gets the worth of the class from `worth`.
  void Add(Owner owner, const Class& of, const Place& place, WorthOf worth);
  // Removes a unit. REQUIRES: the same arguments as in its Add().
  void Remove(Owner owner, const Class& of, const Place& place);
  // Gets the current worth of each class from `worth`. Reorders the classes whose worth changed.
  void Weigh(WorthOf worth);
  // Offers all units to `take`: all units of one owner, then of the next. Owners are ordered by
  // their first units.
  void Visit(absl::FunctionRef<Answer(Key)> take) const;
  void VisitOwned(Owner owner, absl::FunctionRef<Answer(Key)> take) const;

 private:
  struct Members {
    int worth = 0;
    Places places;
  };
  struct Owned {
    absl::flat_hash_map<Class, Members> classes;  // classes that have units
    using Order = std::set<std::tuple<int, uint64_t, Class>>;
    Order order;     // eviction order of the owner's classes
    Order by_worth;  // the same without weights, for the order of owners
    void Enter(const Class& of, const Members& members);
    void Leave(const Class& of, const Members& members);
  };
  using Head = std::tuple<int, uint64_t, Owner>;

  static Head HeadOf(Owner owner, const Owned& owned);
  void Change(Owner owner, const Class& of, WorthOf worth, absl::FunctionRef<void(Places*)> change);
  static Answer VisitOne(const Owned& owned, absl::FunctionRef<Answer(Key)> take);

  absl::flat_hash_map<Owner, std::unique_ptr<Owned>> owned_;  // owners that have units
  std::set<Head> heads_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_RETENTION_VICTIM_ORDER_H_
