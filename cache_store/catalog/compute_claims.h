// ComputeClaims: claims to compute prefixes that the store lacks, and the callers that wait for
// them.
//
// A claim promises boundaries, named by their keys in the hash chain. Keys differ between tenants,
// fingerprints, tokens and cuts, so no caller waits for a prefix that it may not read. At most one
// claim promises a boundary. A waiter names one boundary. It is woken once: when the boundary is
// published or the claim ends for any reason; the waiter then repeats its lookup. Pure bookkeeping:
// no clock, no threads, no calls; the caller runs the returned callbacks without holding a lock.
//
// Not thread safe: the store guards it. Claims and waiters are limited; if a limit is reached,
// callers compute without a claim.
#ifndef HEARTH_CACHE_STORE_CATALOG_COMPUTE_CLAIMS_H_
#define HEARTH_CACHE_STORE_CATALOG_COMPUTE_CLAIMS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/catalog/prefix_index.h"
#include "proto/fingerprint.h"

namespace hearth {

class ComputeClaims {
 public:
  // A claim holds a key of about 100 bytes for each chunk of its prompt: 256 keys at 32,768 tokens.
  // The keys of all claims take at most 100 MiB.
  static constexpr size_t kMaxClaims = 1024;
  static constexpr size_t kMaxKeys = size_t{1} << 20;
  static constexpr size_t kMaxWaiters = 4096;

  using Id = uint64_t;  // of a claim or a waiter; 0: none
  using Wake = std::function<void()>;
  using Wakes = std::vector<Wake>;

  struct Boundary {
    uint32_t tokens = 0;
    Digest key{};
  };
  struct Promise {
    uint32_t tokens = 0;
    Digest key{};
    absl::Time until;  // the claim's deadline
  };

  // Returns the longest of `boundaries` (ascending) that a claim promises.
  std::optional<Promise> Find(absl::Span<const Boundary> boundaries) const;
  // Returns how many of the first `chunks` of a prompt are also in a claim's prompt.
  size_t SharedChunks(absl::Span<const KeyedSegment> chunks) const;

  // Grants a claim on the `boundaries` that are not promised yet, for a prompt of `chunks`. Returns
  // 0 if all are promised or the limit of claims is reached.
  Id Grant(absl::Span<const Boundary> boundaries, absl::Span<const KeyedSegment> chunks,
           absl::Time until);
  // Ends a claim. Ignores unknown and ended ids.
  void End(Id claim, Wakes* wakes);
  // Ends the claims whose deadline is at or before `now`.
  void Expire(absl::Time now, Wakes* wakes);

  // Returns 0 if the limit of waiters is reached. REQUIRES: `key` is promised.
  Id Wait(const Digest& key, Wake wake);
  void StopWaiting(Id waiter);

  // Wakes the waiters of restore points that are stored now, whichever caller published them.
  void Published(absl::Span<const Digest> keys, Wakes* wakes);

  size_t claims() const { return claims_.size(); }
  size_t waiters() const { return waiters_.size(); }

 private:
  struct Claim {
    std::vector<Digest> promised, chunks;
    absl::Time until;
  };
  struct Waiter {
    Digest key{};
    Wake wake;
  };
  void WakeAll(const Digest& key, Wakes* wakes);

  Id next_id_ = 1;
  size_t keys_ = 0;  // of all claims
  absl::flat_hash_map<Id, Claim> claims_;
  std::set<std::pair<absl::Time, Id>> deadlines_;
  absl::flat_hash_map<Digest, Id> promised_;      // the claim that promises the key
  absl::flat_hash_map<Digest, uint32_t> chunks_;  // claims whose prompt has this chunk
  absl::flat_hash_map<Id, Waiter> waiters_;
  std::map<Digest, std::set<Id>> waiting_;  // first come, first woken
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_COMPUTE_CLAIMS_H_
