// VictimOrder: the order of eviction, kept per owner, so that an owner over its limit loses its own
// units, and a guaranteed owner is skipped without looking at its units.
//
// Units of one class have one worth and are ordered by last use, least recently used first. The
// class of the lowest worth comes first; of equal worth, the class with the least recently used
// unit. Within an owner each class's weight is added to its worth; among owners weights do not
// count. Private to cache_store: used by the policies of retention.h. Thread safety: none.
// Invariant: Add and Remove cost O(log n); the cost of the first offer does not depend on the
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
  using Class = std::tuple<int, int, int, int>;  // the last element is the weight
  using WorthOf = absl::FunctionRef<int(const Class&)>;
  using Place = std::tuple<uint64_t, uint32_t, Key>;  // tick, ~tokens (longest first), key

  using Places = absl::btree_set<Place>;

  // Adds a unit. Calls `worth` if no unit of the class is here.
  void Add(Owner owner, const Class& of, const Place& place, WorthOf worth);
  // Removes a unit. REQUIRES: the arguments of its Add().
  void Remove(Owner owner, const Class& of, const Place& place);
  // Computes the worth of every class again.
  void Weigh(WorthOf worth);
  // Offers all units, one owner after another, ordered by each owner's first victim.
  void Visit(absl::FunctionRef<Answer(Key)> take) const;
  void VisitOwned(Owner owner, absl::FunctionRef<Answer(Key)> take) const;

 private:
  struct Members {
    int worth = 0;
    Places places;
  };
  struct Owned {
    absl::flat_hash_map<Class, Members> classes;  // no empty class
    using Order = std::set<std::tuple<int, uint64_t, Class>>;
    Order order;     // order of eviction within the owner
    Order by_worth;  // without weights: gives the owner's place among owners
    void Enter(const Class& of, const Members& members);
    void Leave(const Class& of, const Members& members);
  };
  using Head = std::tuple<int, uint64_t, Owner>;

  static Head HeadOf(Owner owner, const Owned& owned);
  void Change(Owner owner, const Class& of, WorthOf worth, absl::FunctionRef<void(Places*)> change);
  static Answer VisitOne(const Owned& owned, absl::FunctionRef<Answer(Key)> take);

  absl::flat_hash_map<Owner, std::unique_ptr<Owned>> owned_;  // no empty owner
  std::set<Head> heads_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_RETENTION_VICTIM_ORDER_H_
