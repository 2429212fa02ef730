// ComputeClaims: claims on prefixes that the store lacks, and the callers that wait for them.
//
// A claim promises boundaries, named by their keys in the hash chain: keys differ between tenants,
// fingerprints, tokens and cuts, so nobody waits for a prefix that it may not read. A boundary is
// promised by one claim at most. A waiter names one boundary and is woken, once, when it is
// published or its claim ends in any way; then it looks again. Pure bookkeeping: no clock, no
// threads, no calls out; callbacks are handed to the caller, to be run under no lock.
//
// Not thread safe: the store guards it. Both tables are bounded; where one is full, callers just
// compute.
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
  // A claim has a key for each chunk of its prompt, some 100 bytes: at 32,768 tokens 256 keys. Of
  // all claims they take 100 MiB at most.
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

  // The longest of `boundaries` (ascending) that a claim promises.
  std::optional<Promise> Find(absl::Span<const Boundary> boundaries) const;
  // How many of the first `chunks` of a prompt some claim's prompt has too.
  size_t SharedChunks(absl::Span<const KeyedSegment> chunks) const;

  // A claim on those of `boundaries` that are not promised yet, for a prompt of `chunks`. 0 when
  // all are promised, or when there are too many claims.
  Id Grant(absl::Span<const Boundary> boundaries, absl::Span<const KeyedSegment> chunks,
           absl::Time until);
  // Ids that are unknown, or no longer known, are ignored.
  void End(Id claim, Wakes* wakes);
  // Ends the claims whose deadline is at or before `now`.
  void Expire(absl::Time now, Wakes* wakes);

  // REQUIRES: `key` is promised. 0 when too many wait.
  Id Wait(const Digest& key, Wake wake);
  void StopWaiting(Id waiter);

  // Restore points that are stored now, whoever published them.
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
  absl::flat_hash_map<Digest, Id> promised_;      // to the claim
  absl::flat_hash_map<Digest, uint32_t> chunks_;  // claims whose prompt has this chunk
  absl::flat_hash_map<Id, Waiter> waiters_;
  std::map<Digest, std::set<Id>> waiting_;  // first come, first woken
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_COMPUTE_CLAIMS_H_
