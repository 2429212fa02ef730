// Adds a shared tier (Redis) to a store, if the flags enable one.
//
// The flags are checked here, so that a store that cannot use the tier reports the reason before it
// opens anything. Thread safety: none; called from main.
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
// kInvalidArgument names the flag. `secret_file`: the value of --secret-file.
absl::Status CheckSharedFlags(const SharedFlags& flags, const std::string& secret_file);

struct StoreAndEngine {
  std::unique_ptr<TieredStore> store;
  const SharedEngine* engine = nullptr;  // owned by the store; null: no shared tier
  // Number of failed reloads of the files that the flags name.
  std::shared_ptr<const std::atomic<uint64_t>> unusable_files;
  // Logs whether Redis is reached. Last member: its thread uses the other members.
  std::unique_ptr<RepeatingThread> watch;
};
// Adds the shared tier. If the flags enable none, returns the store unchanged. REQUIRES:
// CheckSharedFlags is OK.
absl::StatusOr<StoreAndEngine> AddSharedTier(const SharedFlags& flags,
                                             const std::string& secret_file,
                                             std::unique_ptr<LocalStore> store);

// Stores in `reachability` whether all primaries are reached; false if none are known, as at the
// start.
void NoteReached(const SharedEngineStats& stats, Reachability* reachability);

// Without a shared tier, all values are 0.
std::vector<MetricSample> SharedEngineSamples(const StoreAndEngine& shared);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_SHARED_TIER_H_
