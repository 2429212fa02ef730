// Retention: which unit a cache should give up next. Pure bookkeeping, so that the simulator
// (simulate.h) and the store run the same code.
//
// A unit is kept or given up as a whole: a block of a dense cache, or a restore point. Units form
// chains: a unit's parent is the longest other unit that is a prefix of it.
//
// How a cache uses it, under the cache's own lock:
//  1. A request arrives: Touch with the keys of every boundary of its prompt that may be a unit,
//     root first, held or not. Keys that were given up are remembered for a while; the policy
//     learns from their return.
//  2. The request's new units are inserted, parents first.
//  3. Room is needed: Visit offers units, the least worth keeping first. The cache takes the first
//     one that it may give up (not pinned, not in use) and calls Erase. A new unit may be offered
//     at once: a cache that inserts first and then makes room has admission control with it; one
//     that makes room first has none, which is safe too.
//
// Thread safety: none. Ownership: holds keys and numbers only, nothing of the caller's.
// Time is passed in; a time that goes back counts as standing still. Deterministic: equal calls
// give equal order.
//
// Invariants:
//  1. Depend::kOnParent: no unit is offered while a child of it is held (the default policy).
//  2. Memory: at most kUnitCostBytes for each unit that is held, and for each of the kRememberedMax
//     that are not.
//  3. Visit, Insert and Erase cost O(log n); Touch O(log n) for each known key of its path.
#ifndef HEARTH_CACHE_STORE_RETENTION_RETENTION_H_
#define HEARTH_CACHE_STORE_RETENTION_RETENTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/numeric/int128.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace hearth {

enum class RetentionPolicy { kDefault, kLru };

class Retention {
 public:
  using Key = absl::uint128;
  // The owner of a unit, where that matters for eviction: a tenant with limits. 0: any other.
  using Owner = uint32_t;
  // RAM of a unit: 176 bytes, two places in tables, one in the order of eviction.
  static constexpr uint64_t kUnitCostBytes = 256;
  // Units given up whose return would still be noticed: 16 MiB.
  static constexpr size_t kRememberedMax = 65'536;

  // The worth of a unit without its parent.
  enum class Depend {
    kOnParent,  // worthless: a block of a dense cache
    kNothing,   // whole: a restore point, whose objects are counted by reference
  };

  // The request that brought a unit. `number` tells requests apart; 0 is none.
  struct Prompt {
    uint64_t number = 0;
    uint32_t tokens = 0;
    absl::Time now;
  };
  struct Facts {
    uint32_t tokens = 0;       // the boundary that the unit ends at
    uint32_t gain_tokens = 0;  // tokens that a request need not compute thanks to it
    int cost_steps = 0;        // what one of them costs to compute, log2 in halves from anywhere
    uint64_t bytes = 0;        // what holding it takes
    uint64_t tail_bytes = 0;   // of these, what holding it takes while a child is held
    bool remainder = false;    // not a whole block: only the same prompt needs it
    Owner owner = 0;
    std::optional<Key> parent;
    // A held unit that this key becomes part of: both are used, aged and given up together (a
    // prompt's end, and the boundary before it). The other facts are then of both.
    std::optional<Key> with;
  };

  virtual ~Retention() = default;

  virtual void Touch(absl::Span<const Key> path, uint32_t prompt_tokens, absl::Time now) = 0;
  // The same units, written again: they count as just used, but nothing is learnt from it.
  virtual void Renew(absl::Span<const Key> path, absl::Time now) = 0;
  // Offered from here on. REQUIRES: the key is not held.
  virtual void Insert(Key key, const Facts& facts, const Prompt& prompt) = 0;
  // A unit from before a restart. `has_child`: a longer unit was adopted before it. REQUIRES:
  // `used` is earlier than the last use of every unit held.
  virtual void Adopt(Key key, const Facts& facts, bool has_child, absl::Time used,
                     absl::Time now) = 0;
  // REQUIRES: held.
  virtual void SetEvictable(Key key, bool offered) = 0;
  // What is added to its worth among the units of its owner, from 0 at its insertion. Which owner
  // gives one up follows from their worth alone. REQUIRES: held.
  virtual void SetWeight(Key key, int weight) = 0;
  // The key is no longer held. `remember`: it was given up for room and may return; false: it was
  // dropped, and is forgotten. REQUIRES: held.
  virtual void Erase(Key key, bool remember) = 0;
  static constexpr int kDoubleWorth = 4;      // the weight of twice the worth
  static constexpr int kMaxWeight = 1 << 20;  // above every worth
  // The answer to an offer.
  enum class Answer { kTake, kNext, kNextOwner };
  // Offers the held units, the least worth keeping first, until one is taken: all of one owner,
  // then all of the next, in order of the first that each would give up. `take` must not change the
  // retention.
  virtual void Visit(absl::FunctionRef<Answer(Key)> take) = 0;
  // The same for one owner only.
  virtual void VisitOwned(Owner owner, absl::FunctionRef<Answer(Key)> take) = 0;
  virtual bool Contains(Key key) const = 0;
  virtual size_t held() const = 0;        // keys
  virtual size_t remembered() const = 0;  // units
};

// kLru: the least recently used first; of those used by one request, the longest first.
// kDefault: the least expected return of computation for each byte and second first, learnt from
// the past (learning_retention.h).
std::unique_ptr<Retention> MakeRetention(RetentionPolicy policy, Retention::Depend depend);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_RETENTION_RETENTION_H_
