// Retention: decides which unit a cache evicts next. Pure bookkeeping, so that the simulator
// (simulate.h) and the store run the same code.
//
// A unit is kept or evicted as a whole: a block of a dense cache, or a restore point. Units form
// chains: a unit's parent is the longest other unit that is a prefix of it.
//
// A cache uses it as follows, under the cache's own lock:
//  1. A request arrives: Touch() with the keys of all boundaries of its prompt that may be units,
//     root first, held or not. Evicted keys are remembered for a while; the policy learns from
//     their return.
//  2. The request's new units are inserted, parents first.
//  3. Room is needed: Visit() offers units, least valuable first. The cache takes the first unit
//     that it may evict (not pinned, not in use) and calls Erase(). A new unit may be offered at
//     once: a cache that inserts first and then makes room thereby has admission control; a cache
//     that makes room first has none, which is also safe.
//
// Thread safety: none. Ownership: holds only keys and numbers. The caller passes the time; a time
// that goes backwards counts as unchanged. Deterministic: equal calls give an equal order.
//
// Invariants:
//  1. Depend::kOnParent: no unit is offered while a child is held (the default policy).
//  2. Memory: at most kUnitCostBytes for each held unit and for each of the kRememberedMax
//     remembered units.
//  3. Visit, Insert and Erase cost O(log n); Touch costs O(log n) for each known key of its path.
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
  // The owner of a unit, for eviction limits: a tenant. 0: no owner.
  using Owner = uint32_t;
  // RAM of a unit: 176 bytes, two table slots, and its place in the eviction order.
  static constexpr uint64_t kUnitCostBytes = 256;
  // Evicted units whose return would still be noticed: 16 MiB.
  static constexpr size_t kRememberedMax = 65'536;

  // Value of a unit without its parent.
  enum class Depend {
    kOnParent,  // none: a block of a dense cache
    kNothing,   // unchanged: a restore point, because its objects are reference counted
  };

  // The request that added a unit. `number` distinguishes requests; 0: none.
  struct Prompt {
    uint64_t number = 0;
    uint32_t tokens = 0;
    absl::Time now;
  };
  struct Facts {
    uint32_t tokens = 0;       // boundary at the unit's end
    uint32_t gain_tokens = 0;  // tokens that a request need not compute
    int cost_steps = 0;        // 2 * log2 of the cost per token, up to a constant
    uint64_t bytes = 0;        // bytes held for the unit
    uint64_t tail_bytes =
        0;  // part of `bytes` that is held for the unit alone while a child is held
    bool remainder = false;  // shorter than a block: only the same prompt uses it
    Owner owner = 0;
    std::optional<Key> parent;
    // A held unit that this key joins: both are used, aged and evicted together (a prompt's end and
    // the boundary before it). The other facts then describe both.
    std::optional<Key> with;
  };

  virtual ~Retention() = default;

  virtual void Touch(absl::Span<const Key> path, uint32_t prompt_tokens, absl::Time now) = 0;
  // The units were written again: they count as just used, but the policy learns nothing.
  virtual void Renew(absl::Span<const Key> path, absl::Time now) = 0;
  // Adds a unit, which is offered from now on. REQUIRES: the key is not held.
  virtual void Insert(Key key, const Facts& facts, const Prompt& prompt) = 0;
  // Adds a unit from before a restart. `has_child`: a longer unit was adopted before. REQUIRES:
  // `used` is earlier than the last use of every held unit.
  virtual void Adopt(Key key, const Facts& facts, bool has_child, absl::Time used,
                     absl::Time now) = 0;
  // REQUIRES: the key is held.
  virtual void SetEvictable(Key key, bool offered) = 0;
  // Sets the weight (initially 0) that is added to the unit's worth among its owner's units. The
  // order of owners depends on worth alone. REQUIRES: the key is held.
  virtual void SetWeight(Key key, int weight) = 0;
  // Removes a key. `remember` true: it was evicted for room and may return; false: it was dropped
  // and is forgotten. REQUIRES: the key is held.
  virtual void Erase(Key key, bool remember) = 0;
  static constexpr int kDoubleWorth = 4;      // weight that corresponds to doubling the worth
  static constexpr int kMaxWeight = 1 << 20;  // larger than every worth
  // Answer to an offered unit.
  enum class Answer { kTake, kNext, kNextOwner };
  // Offers the held units, least valuable first, until one is taken: first all units of one owner,
  // then all of the next; owners are ordered by their least valuable unit. `take` must not change
  // the retention.
  virtual void Visit(absl::FunctionRef<Answer(Key)> take) = 0;
  // Like Visit, for one owner.
  virtual void VisitOwned(Owner owner, absl::FunctionRef<Answer(Key)> take) = 0;
  virtual bool Contains(Key key) const = 0;
  virtual size_t held() const = 0;        // held keys
  virtual size_t remembered() const = 0;  // remembered units
};

// kLru: evicts the least recently used unit; of units used by one request, the longest first.
// kDefault: evicts the unit with the lowest expected saving of computation per byte and second,
// learned from the past (learning_retention.h).
std::unique_ptr<Retention> MakeRetention(RetentionPolicy policy, Retention::Depend depend);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_RETENTION_RETENTION_H_
