// SharedSpaces: the space of each tenant by its present numbers, which the engine keeps.
//
// Both numbers are one sealed value. The generation is in the names and seals of what is shared. It
// is another after a drop of all, and where the engine lost the numbers and no store read them a
// moment ago. The drop number is of the last drop of all, and in the keys of each store's own
// objects, too: a store that reads a larger one than its own takes it, and so has nothing from
// before it. A smaller one, or none, changes nothing here: it is answered by writing what this
// store knows.
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
  // Tenants remembered; each takes some 400 bytes. Beyond, all are forgotten, and read again.
  static constexpr size_t kMaxTenants = 4096;
  // Numbers that were read within this are believed where the engine does not tell them.
  static constexpr absl::Duration kBelieved = absl::Minutes(1);

  // `secret`: the store's. `clock`: numbers are its times. `steady`: by which they are read again.
  SharedSpaces(SharedEngine* engine, LocalStore* store, Clock* clock, Clock* steady,
               std::string secret, absl::Duration age)
      : engine_(engine),
        store_(store),
        clock_(clock),
        steady_(steady),
        secret_(std::move(secret)),
        age_(age) {}

  // For who reads. kNotFound: the engine has nothing of the tenant. Another error: it does not
  // tell, nor did it within kBelieved.
  absl::StatusOr<SpacePtr> Of(const std::string& tenant, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_) {
    return Find(tenant, false, deadline);
  }
  // For who writes: begins the first generation of a tenant of which there is nothing.
  absl::StatusOr<SpacePtr> Begin(const std::string& tenant, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_) {
    return Find(tenant, true, deadline);
  }
  // For who answers with what is here: asks whether all of it was dropped, unless the engine told
  // that a moment ago: then false.
  bool Hear(const std::string& tenant, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Begins a new drop number. An error: nothing was dropped, or it may come back after a crash.
  // `told`: an error where the engine may not have it.
  absl::StatusOr<DropResult> DropAll(const std::string& tenant, bool force, absl::Time deadline,
                                     absl::Status* told) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Known {
    SpacePtr space;
    // When it was read, and when the engine last told anything, also that it has nothing.
    absl::Time read_at = absl::InfinitePast(), heard_at = absl::InfinitePast();
  };
  // What the engine says. Generation 0: nothing, or nothing of a store's.
  struct Told {
    SharedNumbers numbers;
    bool is_absent = false;
  };
  absl::StatusOr<SpacePtr> Find(const std::string& tenant, bool begins, absl::Time deadline);
  absl::StatusOr<Told> Ask(const SharedSpace& space, absl::Time deadline);
  // Whether it was written.
  absl::StatusOr<bool> Set(const SharedSpace& space, const SharedNumbers& numbers,
                           bool only_if_absent, absl::Time deadline);
  // With what this store knows. Generation 0: there is none, and none `begins`.
  SharedNumbers Join(const std::string& tenant, const SharedNumbers& told, bool begins)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Later than `number`, and than now.
  uint64_t NumberAfter(uint64_t number) const;
  // It was read now.
  SpacePtr Adopt(const std::string& tenant, const SharedNumbers& numbers) ABSL_LOCKS_EXCLUDED(mu_);
  // Null: none was read since.
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
