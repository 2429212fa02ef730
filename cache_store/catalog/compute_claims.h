// ComputeClaims: which caller computes a prefix that the store does not have, and which callers
// wait for it.
//
// A claim promises to publish boundaries (ends of prompt prefixes). A boundary is named by its hash
// key; keys differ between tenants, models, tokens and prefill cuts, so a caller never waits for a
// prefix that it may not read. At most one claim promises a boundary. A waiter waits for one
// boundary. It is woken once, when the boundary is published or the claim ends, and then repeats
// its lookup. Bookkeeping only: no clock and no threads; the caller runs the returned callbacks
// without holding a lock.
//
// Not thread safe: the store's lock guards it. The numbers of claims and waiters are limited;
// beyond a limit, callers compute without a claim.
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
  // Limit of claims. A claim stores a key of about 100 bytes for each chunk of its prompt (256 keys
  // for 32,768 tokens), so all keys take at most 100 MiB.
  static constexpr size_t kMaxClaims = 1024;
  static constexpr size_t kMaxKeys = size_t{1} << 20;
  static constexpr size_t kMaxWaiters = 4096;

  using Id = uint64_t;  // id of a claim or of a waiter; 0: none
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

  // Returns the longest of `boundaries` (in ascending order) that any claim promises.
  std::optional<Promise> Find(absl::Span<const Boundary> boundaries) const;
  // Returns the number of leading `chunks` of a prompt that are also in the prompt of a claim.
  size_t SharedChunks(absl::Span<const KeyedSegment> chunks) const;

  // Creates a claim for those of `boundaries` that no claim promises yet; `chunks` is the prompt.
  // Returns 0 if all are promised, or if the limit of claims is reached.
  Id Grant(absl::Span<const Boundary> boundaries, absl::Span<const KeyedSegment> chunks,
           absl::Time until);
  // Ends a claim. Ignores ids that are unknown or have ended.
  void End(Id claim, Wakes* wakes);
  // Ends the claims whose deadline is at or before `now`.
  void Expire(absl::Time now, Wakes* wakes);

  // Adds a waiter for the boundary with this key. Returns 0 if the limit of waiters is reached.
  // REQUIRES: a claim promises the key.
  Id Wait(const Digest& key, Wake wake);
  void StopWaiting(Id waiter);

  // Wakes the waiters for these restore points, which are stored now, whichever caller published
  // them.
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
  size_t keys_ = 0;  // number of keys of all claims
  absl::flat_hash_map<Id, Claim> claims_;
  std::set<std::pair<absl::Time, Id>> deadlines_;
  absl::flat_hash_map<Digest, Id> promised_;  // key -> the claim that promises it
  // key of a chunk -> number of claims with this chunk
  absl::flat_hash_map<Digest, uint32_t> chunks_;
  absl::flat_hash_map<Id, Waiter> waiters_;
  std::map<Digest, std::set<Id>> waiting_;  // key -> waiters, in order of arrival
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_COMPUTE_CLAIMS_H_
