// PrefixCache: the engine's interface to a cache of prefixes: fetches the longest stored prefix,
// and publishes new ones.
//
// Implemented over gRPC, by a store in the same process (services/), and by fakes in tests.
// Thread safety: several threads call an implementation at the same time.
// Errors: methods return none. If a call fails, the implementation counts the failure and returns a
// miss, or a publish outcome that stored nothing and has a note. A cache failure never fails a
// request.
#ifndef HEARTH_WORKER_PREFIX_PREFIX_CACHE_H_
#define HEARTH_WORKER_PREFIX_PREFIX_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "worker/prefix/call_stop.h"
#include "worker/prefix/load_model.h"
#include "worker/prefix/object_memory.h"

namespace hearth {

// Bytes that are still being copied from this worker's device.
class LateBytes {
 public:
  virtual ~LateBytes() = default;
  // Waits until the bytes are there and computes the object's digests. Returns false if the device
  // has failed. Any thread.
  virtual bool Complete() = 0;
};

// The bytes of one object: the slices of the layers of its group, in ascending order of layers,
// without gaps. Must not change once shared. `bytes` is aligned to 64 bytes.
struct KvObject {
  ObjectId id;
  // XXH3-64 of each slice; the code that fills `bytes` verifies them.
  std::vector<uint64_t> slice_digests;
  std::shared_ptr<std::byte[]> bytes;
  size_t size_bytes = 0;
  // The same bytes on this worker's device, in memory that the cache lends: readable as long as
  // this pointer exists. Release it soon after the bytes are copied. If it is set, `bytes` may be
  // null, except for an object shorter than a chunk, whose bytes become the beginning of a longer
  // object.
  std::shared_ptr<const std::byte> device_bytes;
  // Returns an error if the lender may have overwritten `device_bytes`. Call it after a copy; null:
  // never overwritten.
  std::function<absl::Status()> check_device_bytes;
  // The same bytes as a KV block of this worker's device, which sequences can use without copying.
  // Null: there is no such block, or `bytes` itself is the block.
  std::shared_ptr<std::byte[]> device_block;
  // If set, `bytes` and `slice_digests` may be read only after Complete has returned true.
  std::shared_ptr<LateBytes> late;

  bool Complete() const { return late == nullptr || late->Complete(); }
};

struct PrefixRequest {
  std::vector<uint32_t> token_ids;
  // Without multiples of chunk_tokens; strictly increasing, in (0, number of tokens].
  std::vector<uint32_t> cuts;
  std::string tenant;
  std::string adapter = "";      // name of the adapter that computes the KV; empty: no adapter
  std::string request_id = "";   // for logs
  std::string traceparent = "";  // trace of the calls; empty: none
  // Cancels Fetch and Lease: they return as after a timeout. May be null.
  std::shared_ptr<CallStop> stop = nullptr;
  // Decides whether Fetch loads the prefix, and sets limits for the transfer. Null: Fetch always
  // loads, within its timeout.
  LoadModel* load = nullptr;
  LoadWork work = {};  // computing that a load may save
};

// Held by the request that computes a prefix while other requests wait for it. If the lease is
// destroyed before the prefix is stored, one of the waiting requests takes over.
class ComputeLease {
 public:
  virtual ~ComputeLease() = default;
};

struct FetchOutcome {
  uint32_t matched_tokens = 0;
  // 0: a miss; otherwise `objects` are exactly the objects that this boundary needs.
  uint32_t usable_tokens = 0;
  uint32_t declined_tokens = 0;  // stored, but not worth loading; only for a miss
  Tier slowest_tier = Tier::kNone;
  std::vector<std::shared_ptr<const KvObject>> objects;  // digests and token ids are verified
  std::string note;                                      // reason for a miss, for logs and Explain
  LoadReport load;  // estimates and times of the loaded or declined prefix
  // The store has counted this lookup in its statistics, with this number of tokens that it took as
  // held by the worker.
  bool is_counted = false;
  uint32_t counted_held = 0;
  // Lease of this request, for which other requests wait. Set by the engine, never by Fetch.
  std::shared_ptr<ComputeLease> lease;
};

// Terms under which one of several requests computes a missing prefix.
struct LeaseTerms {
  absl::Duration lease;  // maximum time that others wait for this request; 0: it will not publish
  absl::Duration wait;   // maximum time that this request waits for another
  uint32_t min_tokens = 0;  // fewer missing tokens need no lease
};
struct LeaseOutcome {
  uint32_t usable_tokens = 0;   // > 0: this prefix is stored now, and can be fetched
  uint32_t matched_tokens = 0;  // tokens that are stored, or that another request is computing
  std::shared_ptr<ComputeLease> lease;  // if not null, other requests wait for this one
};

struct PublishRequestSpec {
  PrefixRequest prefix;
  std::vector<uint32_t> boundaries;
  // All objects that the boundaries need, each once. An object whose `bytes` is null is not in this
  // worker: the store must have it.
  std::vector<std::shared_ptr<const KvObject>> objects;
  Durability durability = Durability::kDefault;
  uint32_t ttl_s = 0;  // 0: the store's default TTL
  KeepHint hint = {};
  // Called with the ids of the objects that the cache does not have, before these are sent. Not
  // called if the cache refuses the publish. May be null.
  std::function<void(const std::vector<ObjectId>& lacked)> on_plan = nullptr;
};

struct PublishOutcome {
  uint32_t published_tokens = 0;  // highest stored boundary; 0: nothing stored
  Durability durable = Durability::kDefault;
  std::vector<uint32_t> boundaries;
  uint64_t bytes_sent = 0;
  std::string note;
};

class PrefixCache {
 public:
  virtual ~PrefixCache() = default;
  // Fetches the longest stored prefix with a boundary in (above_tokens, max_tokens]. Blocks for at
  // most `timeout`, or for the limits that `prefix.load` sets for the transfer. A late answer is a
  // miss.
  virtual FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens,
                             uint32_t max_tokens, absl::Duration timeout) = 0;
  virtual PublishOutcome Publish(const PublishRequestSpec& spec, absl::Duration timeout) = 0;
  // Asks for the lease to compute the tokens of `prefix` after `above_tokens`. Blocks for at most
  // `timeout`, plus at most terms.wait if another request is computing these tokens. The result is
  // only a hint: the caller may compute in any case.
  virtual LeaseOutcome Lease(const PrefixRequest& prefix, uint32_t above_tokens,
                             uint32_t max_tokens, const LeaseTerms& terms, absl::Duration timeout) {
    (void)prefix, (void)above_tokens, (void)max_tokens, (void)terms, (void)timeout;
    return {};
  }
  // Removes `objects` of the tenant's `prefix` permanently, because this worker computes different
  // bytes. Returns true if the cache no longer serves them. Blocks for at most `timeout`.
  virtual bool Quarantine(const PrefixRequest& prefix, const std::vector<ObjectId>& objects,
                          absl::Duration timeout) {
    (void)prefix, (void)objects, (void)timeout;
    return false;
  }
  // Called when the engine shuts down. Running calls should return soon, as after a timeout.
  virtual void CancelCalls() {}
};

}  // namespace hearth

#endif  // HEARTH_WORKER_PREFIX_PREFIX_CACHE_H_
