// SharedOptions: how a store uses the engine that it shares with others. Plain values.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_OPTIONS_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_OPTIONS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace hearth {

struct SharedOptions {
  // The most that a lookup spends on the engine, all round trips together.
  absl::Duration fetch_budget = absl::Milliseconds(500);
  // A value's life since its last use; a deeper chunk's is a little shorter, by an eighth at most.
  absl::Duration ttl = absl::Hours(24);
  // A tenant's generation is read again after this: a drop of all takes effect everywhere within.
  absl::Duration generation_age = absl::Seconds(1);
  // Of each round trip of what is written behind.
  absl::Duration write_timeout = absl::Seconds(5);
  // Written in one round trip. A sixteenth of it is asked for in one, and six are under way.
  uint64_t max_in_flight_bytes = uint64_t{32} << 20;
  // Read from the engine and not yet in RAM, all lookups together. What the store behind has no
  // room for is not to be loaded again and again.
  uint64_t max_loading_bytes = uint64_t{1} << 30;
  // Prompts whose objects wait to be written: their token ids, not their keys and values.
  uint64_t max_queued_bytes = uint64_t{64} << 20;

  // kInvalidArgument names the field.
  absl::Status Validate() const;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_OPTIONS_H_
