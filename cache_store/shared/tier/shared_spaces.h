// SharedSpaces: the space of each tenant in its current generation, which the engine keeps.
//
// A generation is read from the engine when it was not for a while. It never goes back here, so
// that who sets the engine's number back brings nothing back; and an engine that lost the number
// is given it again.
//
// Thread safety: all methods from any thread. Ownership: borrows engine and clock.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_SPACES_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_SPACES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "cache_store/shared/shared_engine.h"
#include "cache_store/shared/shared_space.h"

namespace hearth {

class SharedSpaces {
 public:
  using SpacePtr = std::shared_ptr<const SharedSpace>;
  // Spaces remembered; each takes some 300 bytes. Beyond, all are forgotten, and read again.
  static constexpr size_t kMaxTenants = 4096;

  // `on_dropped`: told, under no lock, of a tenant all of whose prefixes another store dropped;
  // also where that may have been before this store knew the tenant.
  SharedSpaces(SharedEngine* engine, Clock* clock, std::string secret, absl::Duration age,
               std::function<void(const std::string&)> on_dropped)
      : engine_(engine),
        clock_(clock),
        secret_(std::move(secret)),
        age_(age),
        on_dropped_(std::move(on_dropped)) {}

  // An error when the engine never told the generation. Where it does not answer, the last one.
  absl::StatusOr<SpacePtr> Of(const std::string& tenant, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Whether nobody read the generation for a while, nor was told so by this.
  bool IsDue(const std::string& tenant) ABSL_LOCKS_EXCLUDED(mu_);
  // Begins a new generation: what is in the engine is of no use any more.
  absl::Status DropAll(const std::string& tenant, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Known {
    SpacePtr space;
    absl::Time read_at = absl::InfinitePast(), due_at = absl::InfinitePast();
  };
  SpacePtr Adopt(const std::string& tenant, uint64_t generation) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether a store with this secret dropped all before the generation. An error: not known now.
  absl::StatusOr<bool> WasDropped(const std::string& tenant, uint64_t generation,
                                  absl::Time deadline);
  SpacePtr SpaceOf(const std::string& tenant, absl::Time since) ABSL_LOCKS_EXCLUDED(mu_);

  SharedEngine* const engine_;
  Clock* const clock_;
  const std::string secret_;
  const absl::Duration age_;
  const std::function<void(const std::string&)> on_dropped_;
  absl::Mutex mu_;
  std::map<std::string, Known> known_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_SPACES_H_
