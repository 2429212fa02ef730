// SharedSpaces: the space of each tenant in its current generation, which the engine keeps.
//
// A generation is a number that never comes twice: the microseconds of Unix time at which it began,
// or one more than the one before it. The engine has it as a plain number, which whoever publishes
// first sets, and a drop of all also seals it as a mark (DropMark), before the number: the
// generation is the larger one of both, so a store that looks between the two hears of the drop. It
// never goes back here, so that who sets the engine's number back brings nothing back. A number
// that the engine lost is given back to it by a store that read it a moment ago; else a new one
// begins, and what was there is of no use.
//
// Thread safety: all methods from any thread. Ownership: borrows engine, drops and clocks.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_SPACES_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_SPACES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "cache_store/shared/shared_engine.h"
#include "cache_store/shared/shared_space.h"
#include "cache_store/shared/tier/shared_drops.h"

namespace hearth {

class SharedSpaces {
 public:
  using SpacePtr = std::shared_ptr<const SharedSpace>;
  // Tenants remembered; each takes some 400 bytes. Beyond, a quarter is forgotten, and read again:
  // the longest unused.
  static constexpr size_t kMaxTenants = 4096;
  // A generation that was read within this is believed where the engine does not tell it.
  static constexpr absl::Duration kBelieved = absl::Minutes(1);

  // Secrets remembered.
  static constexpr size_t kMaxSecrets = 8;

  // `drops`: told, under no lock, of a tenant all of whose prefixes another store dropped; also
  // where that may have been before this store knew the tenant.
  // `secret`: as it is now. `clock`: generations are its times. `steady`: by which they are read
  // again.
  SharedSpaces(SharedEngine* engine, SharedDrops* drops, Clock* clock, Clock* steady,
               std::function<std::string()> secret, absl::Duration age)
      : engine_(engine),
        drops_(drops),
        clock_(clock),
        steady_(steady),
        read_secret_(std::move(secret)),
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
  // For who erases: the tenant's space under each secret that this process had, and of which the
  // engine has anything. An error: it does not tell of all of them.
  absl::StatusOr<std::vector<SpacePtr>> OfEachSecret(const std::string& tenant, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Whether nobody read the generation for a while, nor was told so by this.
  bool IsDue(const std::string& tenant) ABSL_LOCKS_EXCLUDED(mu_);
  // Nobody looked after all.
  void SetDue(const std::string& tenant) ABSL_LOCKS_EXCLUDED(mu_);
  // Asks whether all of the tenant was dropped, unless the engine told it before.
  void HearFirst(const std::string& tenant, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether a later generation than this space's has begun, so that what was opened with it is not
  // to stay; then what the store has of the tenant was dropped once more.
  bool DropsIfOld(const std::string& tenant, const SharedSpace& space) ABSL_LOCKS_EXCLUDED(mu_);
  // Begins a new generation: what is in the engine is of no use any more. Also under the secrets
  // that this process had before. `force`: stores that hear of it also drop what is pinned.
  // `is_done`: what is here was dropped.
  absl::Status DropAll(const std::string& tenant, bool force, bool is_done, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Known {
    SpacePtr space;
    bool was_told = false;  // whether it was dropped
    absl::Time read_at = absl::InfinitePast(), due_at = absl::InfinitePast();
  };
  // As it is now. With another one all that is remembered is forgotten.
  std::string Secret() ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::string> Secrets() ABSL_LOCKS_EXCLUDED(mu_);
  // What the engine says. 0: nothing, and the status why: kNotFound, or it may be another time.
  struct Told {
    uint64_t number = 0;
    DropMark dropped;
    absl::Status number_status, dropped_status;
    // There is none, or what is there is not a store's.
    bool is_lost() const {
      return absl::IsNotFound(number_status) || absl::IsDataLoss(number_status);
    }
    bool is_mark_read() const { return dropped.number > 0 || absl::IsNotFound(dropped_status); }
  };
  absl::StatusOr<SpacePtr> Find(const std::string& tenant, bool begins, absl::Time deadline);
  // A generation for a tenant whose number the engine does not have. Null: another store was
  // faster.
  absl::StatusOr<SpacePtr> Replace(const std::string& secret, const std::string& tenant,
                                   const Told& told, bool begins, absl::Time deadline);
  Told Ask(const SharedSpace& space, absl::Time deadline);
  // Later than `generation`, and than now.
  uint64_t NumberAfter(uint64_t generation) const;
  // The engine lost the mark of a drop that this store heard of, and others may not have heard.
  void MarkAgain(const SharedSpace& space, DropMark dropped, absl::Time deadline);
  absl::Status DropUnder(const std::string& secret, const std::string& tenant, bool force,
                         bool is_done, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void NoteTold(const std::string& tenant) ABSL_LOCKS_EXCLUDED(mu_);
  // Not one before the last. It was read now.
  SpacePtr Adopt(const std::string& secret, const std::string& tenant, uint64_t generation)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Null: none was read since.
  SpacePtr SpaceOf(const std::string& tenant, absl::Time since) ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t LastOf(const std::string& tenant) ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetSome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Known& KnownOf(const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  SharedEngine* const engine_;
  SharedDrops* const drops_;
  Clock* const clock_;
  Clock* const steady_;
  const std::function<std::string()> read_secret_;
  const absl::Duration age_;
  absl::Mutex mu_;
  std::string secret_ ABSL_GUARDED_BY(mu_);                // of all that is known
  std::vector<std::string> secrets_ ABSL_GUARDED_BY(mu_);  // the last ones, this one behind
  std::map<std::string, Known> known_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_SPACES_H_
