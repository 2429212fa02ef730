// SharedPins: keeps the restore points that this store pinned in the shared engine, within a limit.
//
// Their values' ends are later than those of anything that was just used, and are put off in time:
// the engine, which gives up first what would end first, gives up all others before. What the
// engine lacks of them is written again. Of a store that is gone, and of a point that is no longer
// pinned, nothing is renewed: its values soon count as any others. So do those of pinned points
// beyond the limit, which would otherwise fill the engine.
//
// Thread safety: all methods from any thread. Ownership: borrows its parts.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_PINS_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_PINS_H_

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/base/stats.h"
#include "cache_store/shared/tier/shared_options.h"
#include "cache_store/shared/tier/shared_writer.h"
#include "cache_store/store/tiered_store.h"

namespace hearth {

class SharedPins {
 public:
  struct Parts {
    TieredStore* store = nullptr;
    SharedWriter* writer = nullptr;
    Counters* counters = nullptr;
  };
  SharedPins(const Parts& parts, const SharedOptions& options) : parts_(parts), options_(options) {}

  // Behind the calls: the writer does the work.
  void Add(const RestorePoint& point) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const Digest& id) ABSL_LOCKS_EXCLUDED(mu_);
  // All that the store has pinned, those that had room before first.
  void Renew() ABSL_LOCKS_EXCLUDED(mu_);
  // How long after a renewal the next one is due.
  absl::Duration Interval() const;

 private:
  // Whether there is room for it.
  bool MakeRoom(const RestorePoint& point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RenewPoint(const RestorePoint& point, bool is_new);

  const Parts parts_;
  const SharedOptions options_;
  absl::Mutex mu_;
  absl::flat_hash_map<Digest, uint64_t> kept_ ABSL_GUARDED_BY(mu_);  // bytes, by point
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_PINS_H_
