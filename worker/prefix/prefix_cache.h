// PrefixCache: the engine's interface to a cache of prefixes: fetch the longest restore point,
// publish new ones.
//
// Implemented over gRPC and over a store in the same process (services/), and by fakes in tests.
// Thread safety: implementations are called from several threads at once.
// Errors: none. Whatever goes wrong inside is counted there and shows as a miss, or as a publish
// that stored nothing with a note: a cache failure never fails a request.
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

// One object's bytes: the slices of its group's layers, ascending by layer, back to back.
// Immutable once shared. `bytes` is 64-byte aligned.
struct KvObject {
  ObjectId id;
  std::vector<uint64_t> slice_digests;  // XXH3-64 of each slice; verified by whoever filled `bytes`
  std::shared_ptr<std::byte[]> bytes;
  size_t size_bytes = 0;
  // The same in the memory of the device that this worker computes on, lent while this lives. With
  // it `bytes` may be null, but not of a remainder: a longer object is begun with its bytes.
  std::shared_ptr<const std::byte> device_bytes;
  // The same as a block of this worker's sequences in the memory of its device, which may be used
  // by reference; null: there is none, or `bytes` is one.
  std::shared_ptr<std::byte[]> device_block;
};

struct PrefixRequest {
  std::vector<uint32_t> token_ids;
  std::vector<uint32_t> cuts;  // beside multiples of C, strictly increasing, in (0, tokens]
  std::string tenant;
  std::string adapter = "";     // that its tokens go through, by name; empty: none
  std::string request_id = "";  // for logs
  // Ends Fetch and Lease early, as if their timeout had passed; may be null.
  std::shared_ptr<CallStop> stop = nullptr;
  // Decides whether Fetch loads the prefix that it finds, and with which limits; null: it loads,
  // within the timeout.
  LoadModel* load = nullptr;
  LoadWork work = {};  // that a load may save
};

// Held by the request that computes a prefix for which others wait. Its destruction lets one of
// them take over.
class ComputeLease {
 public:
  virtual ~ComputeLease() = default;
};

struct FetchOutcome {
  uint32_t matched_tokens = 0;
  uint32_t usable_tokens = 0;    // 0: a miss; else objects are exactly what the boundary needs
  uint32_t declined_tokens = 0;  // of a miss: stored, and not worth loading
  Tier slowest_tier = Tier::kNone;
  std::vector<std::shared_ptr<const KvObject>> objects;  // verified: digests and token ids compared
  std::string note;                                      // why it missed, for logs and Explain
  LoadReport load;                                       // of what was brought, or declined
  // Set by the engine's lookup, never by Fetch: others wait for this request.
  std::shared_ptr<ComputeLease> lease;
};

// How a request that misses takes part in computing each prefix once.
struct LeaseTerms {
  absl::Duration lease;     // how long it may compute; zero: it will not publish
  absl::Duration wait;      // how long it waits for another that computes
  uint32_t min_tokens = 0;  // less to gain is not worth either
};
struct LeaseOutcome {
  uint32_t usable_tokens = 0;           // above what was there before: worth a fetch
  uint32_t matched_tokens = 0;          // as FetchOutcome, or of a prompt that another computes
  std::shared_ptr<ComputeLease> lease;  // not null: others wait for this request
};

struct PublishRequestSpec {
  PrefixRequest prefix;
  std::vector<uint32_t> boundaries;
  // The union of the boundaries' needed objects. An object whose `bytes` is null is absent here:
  // the store must have it already.
  std::vector<std::shared_ptr<const KvObject>> objects;
  Durability durability = Durability::kDefault;
  uint32_t ttl_s = 0;  // 0: as long as the store's default says
  KeepHint hint = {};
  // Called once the cache has said which objects it lacks, before these are sent; never of a
  // publish that it refuses. May be null.
  std::function<void(const std::vector<ObjectId>& lacked)> on_plan = nullptr;
};

struct PublishOutcome {
  uint32_t published_tokens = 0;  // highest boundary now stored; 0: nothing
  Durability durable = Durability::kDefault;
  std::vector<uint32_t> boundaries;
  uint64_t bytes_sent = 0;
  std::string note;
};

class PrefixCache {
 public:
  virtual ~PrefixCache() = default;
  // Blocks for at most `timeout`, or the limits that `prefix.load` sets to a transfer; late is a
  // miss. Only points above `above_tokens` and at most `max_tokens` are of use.
  virtual FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens,
                             uint32_t max_tokens, absl::Duration timeout) = 0;
  virtual PublishOutcome Publish(const PublishRequestSpec& spec, absl::Duration timeout) = 0;
  // Blocks for at most `timeout`, and where another computes what `prefix` could use above
  // `above_tokens`, for up to terms.wait more. A hint: whatever comes of it, the caller goes on.
  virtual LeaseOutcome Lease(const PrefixRequest& prefix, uint32_t above_tokens,
                             uint32_t max_tokens, const LeaseTerms& terms, absl::Duration timeout) {
    (void)prefix, (void)above_tokens, (void)max_tokens, (void)terms, (void)timeout;
    return {};
  }
  // Removes `objects` of the tenant's own `prefix` for good: this worker computes other bytes.
  // True: nobody gets them any more. Blocks for at most `timeout`.
  virtual bool Quarantine(const PrefixRequest& prefix, const std::vector<ObjectId>& objects,
                          absl::Duration timeout) {
    (void)prefix, (void)objects, (void)timeout;
    return false;
  }
  // The engine is going away: calls in progress should return soon, as if their time were over.
  virtual void CancelCalls() {}
};

}  // namespace hearth

#endif  // HEARTH_WORKER_PREFIX_PREFIX_CACHE_H_
