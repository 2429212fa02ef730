// StorePublisher: stores restore points, and decides which of several callers computes a prefix.
//
// A restore point's manifest is committed last, names every object that the point needs and holds a
// reference on each. Thread safety: all methods from any thread, but a session is used by one
// thread at a time. Ownership: sessions must not outlive their store. Errors: kInvalidArgument
// (caller), kResourceExhausted (full; retry later), kDataLoss (bytes differ from their digest),
// kAborted (same key, other bytes).
#ifndef HEARTH_CACHE_STORE_STORE_STORE_PUBLISHER_H_
#define HEARTH_CACHE_STORE_STORE_STORE_PUBLISHER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/base/prompt_chain.h"
#include "cache_store/base/slice_view.h"
#include "cache_store/store/store_reader.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"

namespace hearth {

struct PublishObject {
  ObjectId id;
  std::vector<uint64_t> slice_digests;
  bool absent = false;  // the caller does not have the object
};

struct PublishSpec {
  Fingerprint fingerprint;  // with its fields
  std::string tenant;
  std::vector<uint32_t> token_ids;
  std::vector<uint32_t> cuts;
  std::vector<uint32_t> boundaries;
  std::vector<PublishObject> objects;
  Durability durability = Durability::kDefault;
  // Time to live of the restore points, from their commit on. Zero: the tenant's default. An
  // existing point gets the later of its expiry and the new one; without a time to live and a
  // tenant default, it keeps its expiry.
  absl::Duration ttl;
  KeepHint hint = {};                       // if empty, an existing point keeps its hint
  std::function<bool()> stopped = nullptr;  // as PrefixQuery::stopped
  std::string publisher = "";               // the caller's name, for QuarantineResult
  std::vector<ChainPtr> chains = {};        // as PrefixQuery::chains
  // Tenant's drop number (LocalStore::DropNumber) when the objects were read elsewhere. kCancelled:
  // it has changed since.
  std::optional<uint64_t> drop_number = std::nullopt;
};

struct PublishResult {
  Durability durable = Durability::kMemory;  // the reached durability
  std::vector<uint32_t> boundaries;          // now stored
  uint64_t bytes_received = 0;
  std::vector<std::string> notes;  // e.g. why a boundary was left out
};

class PublishSession {
 public:
  virtual ~PublishSession() = default;  // without Commit: nothing is stored
  // Returns indices of the spec's objects that the store lacks; the caller puts exactly these.
  virtual absl::Span<const uint32_t> needed() const = 0;
  // Returns uninitialised memory for the next slice to put: its final place, if there is room.
  // Counts as staged before the allocation; kResourceExhausted names the limit.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> AllocateSlice(size_t bytes) = 0;
  // Takes a whole slice, copies it or keeps it alive by its owner, and verifies it against the
  // announced digest. Memory not from AllocateSlice is counted as staged here. `digest`: of a slice
  // with an owner, if the caller computed it from this memory while filling it; then the slice is
  // not read again.
  virtual absl::Status PutSlice(uint32_t object, uint32_t layer, SliceView slice,
                                std::optional<uint64_t> digest = std::nullopt) = 0;
  // Writes the manifest last; returns once the requested durability is reached. Boundaries with
  // missing objects are left out with a note.
  virtual absl::StatusOr<PublishResult> Commit() = 0;
  // As Commit. Calls `done` once, possibly later and from another thread, so that waiting for other
  // machines blocks no thread of the caller. REQUIRES: the session is not used afterwards.
  virtual void CommitThen(std::function<void(absl::StatusOr<PublishResult>)> done) {
    done(Commit());
  }
};

// Whether a caller with a miss should compute or wait, so that each prefix is computed only once.
enum class ClaimRole {
  kNone,     // fetch the usable tokens, compute the rest, promise nothing
  kWait,     // another caller computes `boundary`: ask again when woken, or at `until`
  kCompute,  // compute and publish by `until`; others wait. May fetch usable tokens first
};
struct ClaimRequest {
  uint32_t above_tokens = 0;    // tokens that the caller already has
  uint32_t max_tokens = 0;      // as Fetch
  uint32_t min_tokens = 0;      // minimum gain that is worth a wait or a promise
  absl::Duration compute_time;  // zero: the caller will not publish
  absl::Time wait_until = absl::InfinitePast();
  uint32_t waited_for = 0;  // boundary of the previous wait; 0: first call
  // Called at most once, without a lock; never after the ticket is destroyed, except for a call in
  // progress.
  std::function<void()> wake;
};
struct ClaimDecision {
  ClaimRole role = ClaimRole::kNone;
  uint32_t usable_tokens = 0;   // stored now
  uint32_t boundary = 0;        // kWait: to wait for; kCompute: the highest promised
  uint32_t matched_tokens = 0;  // as LookupPlan, including prompts being computed
  absl::Time until;
  // Its destruction ends the wait or the claim. If a claim ends, one of the waiting callers takes
  // over.
  std::shared_ptr<void> ticket;
};

class StorePublisher {
 public:
  virtual ~StorePublisher() = default;

  virtual absl::StatusOr<std::unique_ptr<PublishSession>> Publish(PublishSpec spec) = 0;
  // Decides whether the caller computes or waits. The fingerprint's fields must be known
  // (StoreReader::Observe).
  virtual absl::StatusOr<ClaimDecision> Claim(const PrefixQuery& query, ClaimRequest ask) = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_PUBLISHER_H_
