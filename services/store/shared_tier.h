// SharedTier: puts the shared tier in front of a store, if flags enable it.
//
// Plain functions. Flags and their checks are here, so that a store that cannot share reports the
// reason before it opens anything.
#ifndef HEARTH_SERVICES_STORE_SHARED_TIER_H_
#define HEARTH_SERVICES_STORE_SHARED_TIER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache_store/base/repeating_thread.h"
#include "cache_store/shared/shared_engine.h"
#include "cache_store/shared/tier/shared_core.h"
#include "cache_store/store/tiered_store.h"
#include "services/serving/flags.h"
#include "services/serving/metrics.h"
#include "services/serving/reachability.h"

namespace hearth {

struct SharedFlags {
  std::string url = "none";
  std::string user, password_file, ca_file, certificate_file, key_file;
  SharedOptions options;

  bool is_on() const { return url != "none"; }
};

void AddSharedFlags(FlagSet* set, SharedFlags* flags);
// kInvalidArgument: the error has the flag. `secret_file`: the value of --secret-file.
absl::Status CheckSharedFlags(const SharedFlags& flags, const std::string& secret_file);

struct StoreAndEngine {
  std::unique_ptr<TieredStore> store;
  const SharedEngine* engine = nullptr;  // owned by the store; null: no engine is shared
  // Changes of the files in flags that could not be used.
  std::shared_ptr<const std::atomic<uint64_t>> unusable_files;
  std::unique_ptr<RepeatingThread> watch;  // logs whether the engine is reached; last
};
// If nothing is to be shared, returns the store unchanged. REQUIRES: CheckSharedFlags is OK.
absl::StatusOr<StoreAndEngine> AddSharedTier(const SharedFlags& flags,
                                             const std::string& secret_file,
                                             std::unique_ptr<LocalStore> store);

// Notes whether all primaries are reached. False if none are known, as at the start.
void NoteReached(const SharedEngineStats& stats, Reachability* reachability);

// Without an engine, all values are 0.
std::vector<MetricSample> SharedEngineSamples(const StoreAndEngine& shared);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_SHARED_TIER_H_
