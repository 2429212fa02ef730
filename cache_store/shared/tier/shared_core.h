// SharedCore: what all parts of a shared tier share: the store behind it, the engine, the spaces of
// the tenants, clocks and counters; and SharedOptions, how a store uses the engine.
//
// Made by SharedStore before its parts, and outlives them. Thread safety: all of it from any
// thread. Ownership: owns all but a test's clocks.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_CORE_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_CORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "cache_store/base/stats.h"
#include "cache_store/shared/shared_engine.h"
#include "cache_store/shared/tier/shared_spaces.h"
#include "cache_store/store/tiered_store.h"

namespace hearth {

struct SharedOptions {
  // The most that a lookup spends on the engine, all round trips together.
  absl::Duration fetch_budget = absl::Milliseconds(500);
  // A value's life since its last use; a deeper chunk's is a little shorter, by an eighth at most.
  absl::Duration ttl = absl::Hours(24);
  // A tenant's generation is read again after this: a drop of all takes effect everywhere within.
  absl::Duration generation_age = absl::Seconds(1);
  // Written in one round trip. A sixteenth of it is asked for in one, and six are under way.
  uint64_t max_in_flight_bytes = uint64_t{32} << 20;
  // Read from the engine and not yet in RAM, all lookups together. What the store behind has no
  // room for is not to be loaded again and again.
  uint64_t max_loading_bytes = uint64_t{1} << 30;
  // kInvalidArgument names the field.
  absl::Status Validate() const;
};

struct SharedCore {
  // Of each round trip of what is written behind.
  static constexpr absl::Duration kWriteTimeout = absl::Seconds(5);

  // `secret`: the store's. `test_clock`, `test_steady`: null for the real ones; with a clock alone,
  // that one is steady, too.
  SharedCore(std::unique_ptr<LocalStore> behind, std::unique_ptr<SharedEngine> shared,
             const std::string& secret, const SharedOptions& given, Clock* test_clock,
             Clock* test_steady)
      : options(given),
        clock(test_clock != nullptr ? test_clock : &system_clock),
        steady(test_steady != nullptr  ? test_steady
               : test_clock != nullptr ? test_clock
                                       : &steady_clock),
        store(std::move(behind)),
        engine(std::move(shared)),
        spaces(engine.get(), store.get(), clock, steady, secret, options.generation_age) {}

  void Count(Counter counter, uint64_t amount = 1) { counters.Add(counter, amount); }
  // Of what is written to the engine now.
  absl::Time WriteDeadline() const { return clock->Now() + kWriteTimeout; }

  const SharedOptions options;
  SystemClock system_clock;
  SteadyClock steady_clock;
  Clock* const clock;
  Clock* const steady;
  Counters counters;
  const std::unique_ptr<LocalStore> store;
  const std::unique_ptr<SharedEngine> engine;
  SharedSpaces spaces;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_CORE_H_
