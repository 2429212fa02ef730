// SharedClaims: promises to compute a prefix, between stores: so that each is computed once by all
// that share an engine.
//
// A claim is a value that is set if absent and ends by itself; sealed, so that nobody without the
// secret can make others wait. Boundaries are taken in ascending order, one by one: who waits for
// one holds none above it, so no two wait for each other. Claims are hints: whatever goes wrong
// with them, the caller computes.
//
// A store knows its own claims: one that was given back goes only behind what was written under it,
// and until then another of this store's callers takes it over.
//
// Thread safety: all methods from any thread. Ownership: borrows all its parts.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_CLAIMS_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_CLAIMS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/shared/shared_object.h"
#include "cache_store/shared/tier/shared_core.h"
#include "cache_store/shared/tier/shared_writer.h"

namespace hearth {

class SharedClaims {
 public:
  // Boundaries of one prompt that are promised at most: a round trip each.
  static constexpr size_t kMaxBoundaries = 8;
  // Who waits asks again after this.
  static constexpr absl::Duration kPause = absl::Milliseconds(100);

  SharedClaims(SharedCore* core, SharedWriter* writer) : core_(core), writer_(writer) {}

  // `decision`: the store's own, to compute. Returns it with the claims in its ticket; or to wait
  // for another store that computes some of it.
  ClaimDecision Join(const PrefixQuery& query, const KvLayout& layout, const ClaimRequest& ask,
                     ClaimDecision decision) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class Taken { kHere, kElsewhere, kUnknown };
  struct Held;
  // A claim of this store's.
  struct Own {
    int holders = 0;  // who were given it, and those that gave it back and wait for the erasing
    absl::Time ends;  // by the steady clock
  };
  Taken Take(const SharedSpace& space, const std::string& name, absl::Duration claim,
             absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Those of others.
  Taken Look(const SharedSpace& space, const std::string& name, absl::Time deadline);
  void GiveBack(std::vector<std::string> names) ABSL_LOCKS_EXCLUDED(mu_);
  // Those that nobody else here holds, if they did not end before.
  void Erase(const std::vector<std::string>& names) ABSL_LOCKS_EXCLUDED(mu_);

  SharedCore* const core_;
  SharedWriter* const writer_;
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, Own> own_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_CLAIMS_H_
