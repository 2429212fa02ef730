// SharedSpaces: reads and writes the two numbers of each tenant in the engine, and returns the
// tenant's SharedSpace for them.
//
// The two numbers are one sealed value. The generation is part of the names and seals of all shared
// values. It increases after a drop of all entries, and if the engine lost the numbers and no store
// has read them recently. The drop number identifies the last drop of all entries; it is also part
// of the keys of each store's own objects. If a store reads a drop number that is larger than its
// own, it takes the number over, and so loses all entries from before that drop. If it reads a
// smaller number or none, it writes its own number to the engine.
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
  // Limit of remembered tenants, about 400 bytes each. Beyond the limit, all are forgotten and read
  // again.
  static constexpr size_t kMaxTenants = 4096;
  // Numbers that were read within this time are used if the engine does not answer.
  static constexpr absl::Duration kMaxStaleness = absl::Minutes(1);

  // `secret`: the store's secret. `clock`: gives the values of new numbers. `steady`: measures the
  // age of numbers that were read. `age`: after this time, numbers are read again.
  SharedSpaces(SharedEngine* engine, LocalStore* store, Clock* clock, Clock* steady,
               std::string secret, absl::Duration age)
      : engine_(engine),
        store_(store),
        clock_(clock),
        steady_(steady),
        secret_(std::move(secret)),
        age_(age) {}

  // Returns the tenant's space, for readers. kNotFound: the engine has no entries of the tenant.
  // Other errors: the engine did not answer, and its last answer is older than kMaxStaleness.
  absl::StatusOr<SpacePtr> Of(const std::string& tenant, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_) {
    return Find(tenant, false, deadline);
  }
  // Returns the tenant's space, for writers. Begins the first generation if the tenant has none.
  absl::StatusOr<SpacePtr> Begin(const std::string& tenant, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_) {
    return Find(tenant, true, deadline);
  }
  // Checks whether all entries of the tenant were dropped, for lookups that use local entries.
  // Returns false, without a check, if the last answer is younger than `age`.
  bool CheckForDrops(const std::string& tenant, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops all entries of the tenant, and sets a new drop number. Error: nothing was dropped, or
  // entries may reappear after a crash. `written`: an error if the engine may not have stored the
  // number.
  absl::StatusOr<DropResult> DropAll(const std::string& tenant, bool force, absl::Time deadline,
                                     absl::Status* written) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Known {
    SpacePtr space;
    // read_at: when `space` was read. answered_at: when the engine last answered, even without
    // numbers.
    absl::Time read_at = absl::InfinitePast(), answered_at = absl::InfinitePast();
  };
  // The engine's reply to a read of a tenant's two numbers (SharedNumbers).
  struct NumbersReply {
    SharedNumbers numbers;   // generation 0: the engine has no numbers that a store has written
    bool is_absent = false;  // the engine has no value, not even an invalid one
  };
  absl::StatusOr<SpacePtr> Find(const std::string& tenant, bool begins, absl::Time deadline);
  absl::StatusOr<NumbersReply> ReadNumbers(const SharedSpace& space, absl::Time deadline);
  // Writes the numbers to the engine. Returns whether they were written.
  absl::StatusOr<bool> Set(const SharedSpace& space, const SharedNumbers& numbers,
                           bool only_if_absent, absl::Time deadline);
  // Returns the numbers to use: the larger of `stored` and this store's own. `begins`: begin a
  // generation if there is none; otherwise generation 0 means that there is none.
  SharedNumbers Join(const std::string& tenant, const SharedNumbers& stored, bool begins)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a new number: larger than `number`, and at least the current time.
  uint64_t NumberAfter(uint64_t number) const;
  // Remembers `numbers` as read now, and returns their space.
  SpacePtr Adopt(const std::string& tenant, const SharedNumbers& numbers) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the remembered space; null if it was not read since `since`.
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
