// SharedCore: the state that all parts of a shared tier use: the local store, the engine, the
// tenants' spaces, clocks and counters. SharedOptions: how a store uses the engine.
//
// SharedStore creates the core before its other parts, and destroys it after them. Thread safety:
// all members from any thread. Ownership: owns everything except a test's clocks.
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
  // Maximum total time that a lookup spends on the engine.
  absl::Duration fetch_budget = absl::Milliseconds(500);
  // Time to live of a value since its last use. Later chunks of a prompt live shorter, by at most
  // an eighth.
  absl::Duration ttl = absl::Hours(24);
  // Age at which a tenant's generation number is read again. A drop of all entries takes effect in
  // every store within this time.
  absl::Duration generation_age = absl::Seconds(1);
  // Maximum bytes written in one round trip. Reads use batches of 1/16 of these bytes, with six
  // batches in flight.
  uint64_t max_in_flight_bytes = uint64_t{32} << 20;
  // Maximum bytes that all lookups together have read from the engine and not yet put into RAM.
  // Larger loads are not begun, so that objects for which RAM has no space are not loaded again and
  // again.
  uint64_t max_loading_bytes = uint64_t{1} << 30;
  // Checks the options. kInvalidArgument names the invalid field.
  absl::Status Validate() const;
};

struct SharedCore {
  // Time limit of each round trip of background writes.
  static constexpr absl::Duration kWriteTimeout = absl::Seconds(5);

  // `secret`: the store's secret. `test_clock`, `test_steady`: clocks of a test; null: the real
  // clocks. If only `test_clock` is given, it is also the steady clock.
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
  // Returns the deadline for a write to the engine that begins now.
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
