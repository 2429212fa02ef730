// VictimOrder: the order in which units may be given up, kept by owner, so that an owner over its
// limit loses its own units and a guaranteed owner is skipped without a look at its units.
//
// Units of one class have one worth, the least recently used first. The class of least worth comes
// first; of equal ones, the class with the least recently used unit. Among an owner's classes each
// has its weight beside its worth, which does not count among owners. Private to cache_store: what
// the policies of retention.h are made of. Thread safety: none.
// Invariant: Add and Remove cost O(log n); the first offer does not depend on how much there is.
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
  using Class = std::tuple<int, int, int, int>;  // the last: its weight
  using WorthOf = absl::FunctionRef<int(const Class&)>;
  using Place = std::tuple<uint64_t, uint32_t, Key>;  // tick, ~tokens (longest first), key

  using Places = absl::btree_set<Place>;

  // `worth` is asked when nothing of the class is here.
  void Add(Owner owner, const Class& of, const Place& place, WorthOf worth);
  // REQUIRES: as it was added.
  void Remove(Owner owner, const Class& of, const Place& place);
  // Asks for the worth of every class again.
  void Weigh(WorthOf worth);
  // One owner after the other, by the first that each would give up.
  void Visit(absl::FunctionRef<Answer(Key)> take) const;
  void VisitOwned(Owner owner, absl::FunctionRef<Answer(Key)> take) const;

 private:
  struct Members {
    int worth = 0;
    Places places;
  };
  struct Owned {
    absl::flat_hash_map<Class, Members> classes;  // none is empty
    using Order = std::set<std::tuple<int, uint64_t, Class>>;
    Order order;     // as its units are given up
    Order by_worth;  // without weights: of its place among the owners
    void Enter(const Class& of, const Members& members);
    void Leave(const Class& of, const Members& members);
  };
  using Head = std::tuple<int, uint64_t, Owner>;

  static Head HeadOf(Owner owner, const Owned& owned);
  void Change(Owner owner, const Class& of, WorthOf worth, absl::FunctionRef<void(Places*)> change);
  static Answer VisitOne(const Owned& owned, absl::FunctionRef<Answer(Key)> take);

  absl::flat_hash_map<Owner, std::unique_ptr<Owned>> owned_;  // none is empty
  std::set<Head> heads_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_RETENTION_VICTIM_ORDER_H_
