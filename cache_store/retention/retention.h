// Retention: the eviction policy: decides which unit a cache evicts next. Bookkeeping only, so that
// the store and the simulator (simulate.h) run the same code.
//
// A unit is cached or evicted as a whole: it is a restore point or, in the simulator, a block of
// tokens. Units form chains: the parent of a unit is the longest other unit that is a prefix of it.
//
// A cache calls the policy as follows, under the cache's own lock:
//  1. When a request arrives: Touch() with the keys of all prefixes of its prompt that may be
//     units, shortest first, cached or not. Evicted keys are remembered for a while, and the policy
//     learns from their return.
//  2. The cache inserts the request's new units, parents first.
//  3. When the cache needs space: Visit() offers units, least valuable first. The cache takes the
//     first unit that it may evict (not pinned, not in use) and calls Erase(). A new unit may be
//     offered at once.
//
// Thread safety: none. Stores only keys and numbers. The caller passes the time; a time before the
// last one counts as equal to it. Deterministic: equal calls give an equal order.
//
// Invariants:
//  1. Depend::kOnParent: the default policy offers no unit while a child of the unit is held.
//  2. Memory: at most kUnitCostBytes for each held unit and for each of the kRememberedMax
//     remembered units.
//  3. Visit, Insert and Erase cost O(log n). Touch costs O(log n) for each known key of its path.
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
  // Number of a unit's owner (a tenant), for limits per tenant. 0: no owner.
  using Owner = uint32_t;
  // RAM of a unit: 176 bytes, two slots of hash tables, and a node in the eviction order.
  static constexpr uint64_t kUnitCostBytes = 256;
  // Limit of evicted units that the policy remembers to notice their return: 16 MiB.
  static constexpr size_t kRememberedMax = 65'536;

  // The value of a unit after its parent was evicted.
  enum class Depend {
    kOnParent,  // no value: a block of tokens, which needs the blocks before it
    kNothing,   // unchanged value: a restore point, whose objects have reference counts
  };

  // The request that adds a unit. `number` distinguishes requests; 0: none.
  struct Prompt {
    uint64_t number = 0;
    uint32_t tokens = 0;
    absl::Time now;
  };
  struct Facts {
    uint32_t tokens = 0;       // token position at the unit's end
    uint32_t gain_tokens = 0;  // number of tokens that a hit need not compute
    int cost_steps = 0;        // 2 * log2 of the cost per token, plus a constant
    uint64_t bytes = 0;        // bytes of the unit
    uint64_t tail_bytes = 0;   // part of `bytes` that an eviction would free while a child is held
    bool remainder = false;    // shorter than a block, so that only the same prompt can use it
    Owner owner = 0;
    std::optional<Key> parent;
    // Key of a held unit that this key joins: both keys are then one unit, used and evicted
    // together (a prompt's end and the chunk boundary before it). The other facts describe this
    // unit.
    std::optional<Key> with;
  };

  virtual ~Retention() = default;

  virtual void Touch(absl::Span<const Key> path, uint32_t prompt_tokens, absl::Time now) = 0;
  // Call if the units were published again: they count as just used, but the policy learns nothing.
  virtual void Renew(absl::Span<const Key> path, absl::Time now) = 0;
  // Adds a unit, which Visit() offers from now on. REQUIRES: the key is not held.
  virtual void Insert(Key key, const Facts& facts, const Prompt& prompt) = 0;
  // Adds a unit that existed before a restart. `has_child`: a longer unit of its chain was adopted
  // before. REQUIRES: `used` is earlier than the last use of all held units.
  virtual void Adopt(Key key, const Facts& facts, bool has_child, absl::Time used,
                     absl::Time now) = 0;
  // Sets whether Visit() offers the unit. REQUIRES: the key is held.
  virtual void SetEvictable(Key key, bool offered) = 0;
  // Sets the weight (initially 0), which is added to the unit's worth in the order of its owner's
  // units. The order of owners ignores weights. REQUIRES: the key is held.
  virtual void SetWeight(Key key, int weight) = 0;
  // Removes a key. `remember`: true if the unit was evicted and may return; false if it was
  // dropped. REQUIRES: the key is held.
  virtual void Erase(Key key, bool remember) = 0;
  static constexpr int kDoubleWorth = 4;      // weight that has the effect of doubling the worth
  static constexpr int kMaxWeight = 1 << 20;  // weight larger than every worth
  // Answer to an offered unit: take it, offer the next unit, or offer the next owner's units.
  enum class Answer { kTake, kNext, kNextOwner };
  // Offers the evictable units, least valuable first, until `take` takes one: all units of one
  // owner, then all units of the next owner. Owners are ordered by their least valuable unit.
  // `take` must not change the policy.
  virtual void Visit(absl::FunctionRef<Answer(Key)> take) = 0;
  // Offers the evictable units of one owner, least valuable first, until `take` takes one.
  virtual void VisitOwned(Owner owner, absl::FunctionRef<Answer(Key)> take) = 0;
  virtual bool Contains(Key key) const = 0;
  virtual size_t held() const = 0;        // number of held keys
  virtual size_t remembered() const = 0;  // number of remembered (evicted) units
};

// Creates a policy. kLru: evicts the least recently used unit; of units that one request used, the
// longest first. kDefault: evicts the unit that is expected to save the least computation per byte
// and second (learning_retention.h).
std::unique_ptr<Retention> MakeRetention(RetentionPolicy policy, Retention::Depend depend);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_RETENTION_RETENTION_H_
