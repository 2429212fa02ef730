// SharedCore: what all parts of a shared tier share: the store behind it, the engine, the spaces of
// the tenants, clocks, counters and options.
//
// Made by SharedStore before its parts, and outlives them. Thread safety: all of it from any
// thread. Ownership: owns all but a test's clocks.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_CORE_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_CORE_H_

#include <memory>
#include <string>
#include <utility>

#include "cache_store/base/clock.h"
#include "cache_store/base/stats.h"
#include "cache_store/shared/shared_engine.h"
#include "cache_store/shared/tier/shared_options.h"
#include "cache_store/shared/tier/shared_spaces.h"
#include "cache_store/store/tiered_store.h"

namespace hearth {

struct SharedCore {
  // `secret`: the store's. `test_clock`, `test_steady`: null for the real ones; with a clock alone,
  // that one is steady, too.
  SharedCore(std::unique_ptr<TieredStore> behind, std::unique_ptr<SharedEngine> shared,
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
  absl::Time WriteDeadline() const { return clock->Now() + options.write_timeout; }

  const SharedOptions options;
  SystemClock system_clock;
  SteadyClock steady_clock;
  Clock* const clock;
  Clock* const steady;
  Counters counters;
  const std::unique_ptr<TieredStore> store;
  const std::unique_ptr<SharedEngine> engine;
  SharedSpaces spaces;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_CORE_H_
