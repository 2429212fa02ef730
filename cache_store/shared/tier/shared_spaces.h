// SharedSpaces: each tenant's space under its current numbers, which are stored in the engine.
//
// The two numbers are one sealed value. The generation is part of the names and seals of shared
// values. It changes after a drop of all entries, and if the engine lost the numbers and no store
// has read them recently. The drop number identifies the last drop of all entries and is also part
// of the keys of each store's own objects. If a store reads a larger drop number than its own, it
// adopts the number and so loses all entries from before that drop. If it reads a smaller number or
// none, it keeps its own and writes it to the engine.
//
// Thread safety: all methods from any thread. Ownership: borrows engine, store and clocks.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_SPACES_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_SPACES_H_

#include <cstdint>
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
#include "cache_store/store/tiered_store.h"

namespace hearth {

class SharedSpaces {
 public:
  using SpacePtr = std::shared_ptr<const SharedSpace>;
  // Remembered tenants, about 400 bytes each. Beyond this number, all are forgotten and read again.
  static constexpr size_t kMaxTenants = 4096;
  // If the engine does not answer, numbers read within this time are still used.
  static constexpr absl::Duration kMaxStaleness = absl::Minutes(1);

  // `secret`: the store's secret. `clock`: new numbers are times of this clock. `steady`: measures
  // the age of read numbers. `age`: numbers older than this are read again.
  SharedSpaces(SharedEngine* engine, LocalStore* store, Clock* clock, Clock* steady,
               std::string secret, absl::Duration age)
      : engine_(engine),
        store_(store),
        clock_(clock),
        steady_(steady),
        secret_(std::move(secret)),
        age_(age) {}

  // For readers. kNotFound: the engine has no entries of the tenant. Another error: the engine did
  // not answer, and no answer within kMaxStaleness is known.
  absl::StatusOr<SpacePtr> Of(const std::string& tenant, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_) {
    return Find(tenant, false, deadline);
  }
  // For writers: begins the first generation if the tenant has none.
  absl::StatusOr<SpacePtr> Begin(const std::string& tenant, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_) {
    return Find(tenant, true, deadline);
  }
  // For lookups that use local entries: checks whether all entries of the tenant were dropped.
  // Returns false, without a check, if the engine answered within `age`.
  bool CheckForDrops(const std::string& tenant, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops all entries of the tenant under a new drop number. Error: nothing was dropped, or entries
  // may reappear after a crash. `written`: an error if the engine may not have the number.
  absl::StatusOr<DropResult> DropAll(const std::string& tenant, bool force, absl::Time deadline,
                                     absl::Status* written) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Known {
    SpacePtr space;
    // When `space` was read, and when the engine last answered, including answers without numbers.
    absl::Time read_at = absl::InfinitePast(), answered_at = absl::InfinitePast();
  };
  // The engine's answer. Generation 0: it has no numbers, or none written by a store.
  struct NumbersReply {
    SharedNumbers numbers;
    bool is_absent = false;
  };
  absl::StatusOr<SpacePtr> Find(const std::string& tenant, bool begins, absl::Time deadline);
  absl::StatusOr<NumbersReply> ReadNumbers(const SharedSpace& space, absl::Time deadline);
  // Returns whether the numbers were written.
  absl::StatusOr<bool> Set(const SharedSpace& space, const SharedNumbers& numbers,
                           bool only_if_absent, absl::Time deadline);
  // Combines `stored` with this store's own numbers. Generation 0: there is none, and !begins.
  SharedNumbers Join(const std::string& tenant, const SharedNumbers& stored, bool begins)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a number larger than `number` and not before the current time.
  uint64_t NumberAfter(uint64_t number) const;
  // Stores `numbers` as read now.
  SpacePtr Adopt(const std::string& tenant, const SharedNumbers& numbers) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns null if no space was read since `since`.
  SpacePtr SpaceOf(const std::string& tenant, absl::Time since) ABSL_LOCKS_EXCLUDED(mu_);
  Known& KnownOf(const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  SharedEngine* const engine_;
  LocalStore* const store_;
  Clock* const clock_;
  Clock* const steady_;
  const std::string secret_;
  const absl::Duration age_;
  absl::Mutex mu_;
  std::map<std::string, Known> known_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_SPACES_H_
