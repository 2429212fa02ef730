// PrefixCache: the engine's interface to a cache of prefixes: fetch the longest restore point,
// publish new ones.
//
// Implemented over gRPC and by a store in the same process (services/), and by fakes in tests.
// Thread safety: implementations are called from several threads at once.
// Errors: none. A failure inside is counted there and appears as a miss, or as a publish that
// stored nothing with a note. A cache failure never fails a request.
#ifndef HEARTH_WORKER_PREFIX_PREFIX_CACHE_H_
#define HEARTH_WORKER_PREFIX_PREFIX_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "worker/prefix/call_stop.h"
#include "worker/prefix/load_model.h"
#include "worker/prefix/object_memory.h"

namespace hearth {

// One object's bytes: the slices of its group's layers, ascending by layer, back to back. Immutable
// once shared. `bytes` is 64-byte aligned.
struct KvObject {
  ObjectId id;
  std::vector<uint64_t> slice_digests;  // XXH3-64 of each slice, verified by the writer of `bytes`
  std::shared_ptr<std::byte[]> bytes;
  size_t size_bytes = 0;
  // The same bytes in the memory of this worker's device, valid while this pointer lives. Then
  // `bytes` may be null, except for a remainder, whose bytes begin a longer object.
  std::shared_ptr<const std::byte> device_bytes;
  // The same bytes as a block of this worker's device, usable by reference. Null: none, or `bytes`
  // is the block.
  std::shared_ptr<std::byte[]> device_block;
};

struct PrefixRequest {
  std::vector<uint32_t> token_ids;
  std::vector<uint32_t> cuts;  // without multiples of C; strictly increasing, in (0, tokens]
  std::string tenant;
  std::string adapter = "";     // name of the tokens' adapter; empty: none
  std::string request_id = "";  // for logs
  // Cancels Fetch and Lease, as if their timeout had passed. May be null.
  std::shared_ptr<CallStop> stop = nullptr;
  // Decides whether Fetch loads the prefix, and with which limits. Null: Fetch loads, within the
  // timeout.
  LoadModel* load = nullptr;
  LoadWork work = {};  // that a load may save
};

// Held by the request that computes a prefix for waiting requests. If it is destroyed, one of them
// takes over.
class ComputeLease {
 public:
  virtual ~ComputeLease() = default;
};

struct FetchOutcome {
  uint32_t matched_tokens = 0;
  uint32_t usable_tokens = 0;    // 0: a miss; else `objects` are exactly what the boundary needs
  uint32_t declined_tokens = 0;  // of a miss: stored, but not worth loading
  Tier slowest_tier = Tier::kNone;
  std::vector<std::shared_ptr<const KvObject>> objects;  // verified: digests and token ids compared
  std::string note;                                      // reason for a miss, for logs and Explain
  LoadReport load;                                       // of the loaded or declined prefix
  // Set by the engine's lookup, never by Fetch: other requests wait for this one.
  std::shared_ptr<ComputeLease> lease;
};

// Terms of computing each missing prefix only once.
struct LeaseTerms {
  absl::Duration lease;     // maximum time to compute; 0: will not publish
  absl::Duration wait;      // maximum wait for another's computation
  uint32_t min_tokens = 0;  // a smaller gain needs no lease
};
struct LeaseOutcome {
  uint32_t usable_tokens = 0;           // > 0: available now, worth a fetch
  uint32_t matched_tokens = 0;          // as FetchOutcome, or of a prompt being computed
  std::shared_ptr<ComputeLease> lease;  // not null: other requests wait for this one
};

struct PublishRequestSpec {
  PrefixRequest prefix;
  std::vector<uint32_t> boundaries;
  // The union of the objects that the boundaries need. An object whose `bytes` is null is not
  // available here: the store must have it.
  std::vector<std::shared_ptr<const KvObject>> objects;
  Durability durability = Durability::kDefault;
  uint32_t ttl_s = 0;  // 0: the store's default
  KeepHint hint = {};
  // Called once the cache has reported the missing objects, before they are sent. Not called if
  // the publish is refused. May be null.
  std::function<void(const std::vector<ObjectId>& lacked)> on_plan = nullptr;
};

struct PublishOutcome {
  uint32_t published_tokens = 0;  // highest boundary stored; 0: none
  Durability durable = Durability::kDefault;
  std::vector<uint32_t> boundaries;
  uint64_t bytes_sent = 0;
  std::string note;
};

class PrefixCache {
 public:
  virtual ~PrefixCache() = default;
  // Blocks for at most `timeout`, or the limits that `prefix.load` sets for the transfer; a late
  // answer is a miss. Useful boundaries are in (above_tokens, max_tokens].
  virtual FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens,
                             uint32_t max_tokens, absl::Duration timeout) = 0;
  virtual PublishOutcome Publish(const PublishRequestSpec& spec, absl::Duration timeout) = 0;
  // Blocks for at most `timeout`, plus up to terms.wait if another request computes tokens of
  // `prefix` above `above_tokens`. A hint only: the caller continues in any case.
  virtual LeaseOutcome Lease(const PrefixRequest& prefix, uint32_t above_tokens,
                             uint32_t max_tokens, const LeaseTerms& terms, absl::Duration timeout) {
    (void)prefix, (void)above_tokens, (void)max_tokens, (void)terms, (void)timeout;
    return {};
  }
  // Removes `objects` of the tenant's `prefix` permanently, because this worker computes other
  // bytes. Returns true if they are not served any more. Blocks for at most `timeout`.
  virtual bool Quarantine(const PrefixRequest& prefix, const std::vector<ObjectId>& objects,
                          absl::Duration timeout) {
    (void)prefix, (void)objects, (void)timeout;
    return false;
  }
  // The engine is shutting down: running calls should return soon, as if they timed out.
  virtual void CancelCalls() {}
};

}  // namespace hearth

#endif  // HEARTH_WORKER_PREFIX_PREFIX_CACHE_H_
