// SingleFlight: claims on segment keys, so that of several publishers of one segment only one
// writes.
//
// A claimant waits until none of its keys is claimed and takes all at once, so claims cannot
// deadlock. Guarded by the store's mutex, which a waiting claimant releases.
#ifndef HEARTH_CACHE_STORE_CATALOG_SINGLE_FLIGHT_H_
#define HEARTH_CACHE_STORE_CATALOG_SINGLE_FLIGHT_H_

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "proto/fingerprint.h"

namespace hearth {

class SingleFlight {
 public:
  // REQUIRES: `mu` held. Releases it while waiting; everything read before is stale afterwards.
  void Claim(absl::Mutex* mu, const std::vector<Digest>& keys) {
    mu->AssertHeld();
    const auto free = [this, &keys] {
      for (const Digest& key : keys) {
        if (claimed_.contains(key)) return false;
      }
      return true;
    };
    mu->Await(absl::Condition(&free));
    claimed_.insert(keys.begin(), keys.end());
  }
  void Release(const std::vector<Digest>& keys) {
    for (const Digest& key : keys) claimed_.erase(key);
  }

 private:
  absl::flat_hash_set<Digest> claimed_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_SINGLE_FLIGHT_H_
