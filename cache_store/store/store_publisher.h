// StorePublisher: stores restore points, and decides which of several callers computes a prefix.
//
// A restore point's manifest commits last, names every object that it needs and holds a reference
// on each. Thread safety: all methods from any thread, but one session is used by one thread at a
// time. Ownership: sessions must not outlive their store. Errors: kInvalidArgument (caller),
// kResourceExhausted (full; retry later), kDataLoss (bytes differ from their digest), kAborted
// (same key, other bytes).
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
  bool absent = false;  // the caller cannot supply it
};

struct PublishSpec {
  Fingerprint fingerprint;  // with its fields
  std::string tenant;
  std::vector<uint32_t> token_ids;
  std::vector<uint32_t> cuts;
  std::vector<uint32_t> boundaries;
  std::vector<PublishObject> objects;
  Durability durability = Durability::kDefault;
  // The restore points' time to live from their commit on. Zero: the tenant's default; without one,
  // a point that was published before keeps its end. Published again with a time to live, a point
  // gets the later of the two ends.
  absl::Duration ttl;
  KeepHint hint = {};  // published again without a hint, a point keeps its hint
  std::function<bool()> stopped = nullptr;  // as PrefixQuery's
  std::string publisher = "";               // the caller's name, for QuarantineResult
  std::vector<ChainPtr> chains = {};        // as PrefixQuery's
  // The tenant's drop number when the objects were read elsewhere: kCancelled if it is another now
  // (LocalStore::DropNumber).
  std::optional<uint64_t> drop_number = std::nullopt;
};

struct PublishResult {
  Durability durable = Durability::kMemory;  // the level reached
  std::vector<uint32_t> boundaries;          // now stored
  uint64_t bytes_received = 0;
  std::vector<std::string> notes;  // why a boundary was left out
};

class PublishSession {
 public:
  virtual ~PublishSession() = default;  // without Commit: leaves nothing behind
  // Indices into the spec's objects that the store lacks; the caller puts exactly these.
  virtual absl::Span<const uint32_t> needed() const = 0;
  // Uninitialised memory for the next slice to be put: where it will stay, if there is room.
  // Counted as staged before its allocation; kResourceExhausted names the limit.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> AllocateSlice(size_t bytes) = 0;
  // Takes one whole slice, which it copies or keeps alive by its owner, and verifies it against the
  // announced digest. Counts memory as staged that AllocateSlice did not. `digest`: of a slice that
  // is kept alive by its owner, if the caller computed it from this memory while filling it: the
  // slice is not read again.
  virtual absl::Status PutSlice(uint32_t object, uint32_t layer, SliceView slice,
                                std::optional<uint64_t> digest = std::nullopt) = 0;
  // Writes the manifest last; returns once the requested durability is reached. Boundaries whose
  // objects did not all arrive are left out with a note.
  virtual absl::StatusOr<PublishResult> Commit() = 0;
  // As Commit. Calls `done` once, maybe later and from another thread, so that a wait for other
  // machines holds no thread of the caller's; the session is not used after that.
  virtual void CommitThen(std::function<void(absl::StatusOr<PublishResult>)> done) {
    done(Commit());
  }
};

// Whether a caller that misses should compute or wait, so that each prefix is computed once.
enum class ClaimRole {
  kNone,     // go on: fetch what is usable, compute the rest, promise nothing
  kWait,     // another caller computes `boundary`: ask again when woken, or at `until`
  kCompute,  // compute and publish by `until`; others wait. May fetch what is usable first
};
struct ClaimRequest {
  uint32_t above_tokens = 0;    // where the caller starts otherwise
  uint32_t max_tokens = 0;      // as Fetch
  uint32_t min_tokens = 0;      // less to gain is not worth a wait or a promise
  absl::Duration compute_time;  // zero: it will not publish
  absl::Time wait_until = absl::InfinitePast();
  uint32_t waited_for = 0;  // the boundary of the wait that ended; 0: the first time
  // Called at most once, under no lock; not after the ticket is gone, except for a call in
  // progress.
  std::function<void()> wake;
};
struct ClaimDecision {
  ClaimRole role = ClaimRole::kNone;
  uint32_t usable_tokens = 0;   // stored by now
  uint32_t boundary = 0;        // kWait: waited for; kCompute: the highest that is promised
  uint32_t matched_tokens = 0;  // as LookupPlan, or of a prompt that another caller computes
  absl::Time until;
  // Its destruction ends a wait, or a claim, which one of the waiting callers takes over.
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
